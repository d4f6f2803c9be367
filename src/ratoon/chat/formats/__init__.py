"""Dialects of tool calls, one module each, all with the same name.

``DIALECT``   how the family's models write calls
``parse``     the body of a call → the calls, or None where it is none; shared ones stand in
              ``json_text``, ``tagged``, ``section`` and ``literal``

``table`` lists them all and tells which one a chat template speaks.
"""
