"""The router: which of a domain's tools serves a query."""
