"""The package as users get it: what sdist and wheel hold, and what they do in an environment of their own."""
