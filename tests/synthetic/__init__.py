"""Make small GGUF models for tests."""
