"""Dialects of tool calls, one module each, all with the same name.

``DIALECT``  how the family's models write calls

A dialect reads a call while it comes: its forms are readings that take text from a ``source``, wait
where there is none, and put what they find into a ``sink``. Shared ones stand in ``json_text``,
``tagged``, ``section``, ``pythonic`` and ``literal``.

``table`` lists them all and tells which one a chat template speaks.
"""
