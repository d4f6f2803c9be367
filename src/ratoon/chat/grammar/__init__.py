"""Grammars of what a model may write, in llguidance's dialect of Lark.

``schema``     reading JSON schemas
``lark``       the source of one grammar, rule by rule
``tagged``     arguments as bare text between tags
``literal``    arguments as literals of a programming language
``compiler``   sources to matchers; the only module that knows llguidance
``calls``      a dialect's forms and a request's tools to sources
"""
