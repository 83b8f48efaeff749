"""Integrations with web frameworks, one module or folder each; none imports another, and each needs an extra."""
