"""Dialects of tool calls, one module each, all with the same three names.

``START``, ``END``  the texts around a call
``parse_call``      the text between them → the call, or None where it is not one
"""
