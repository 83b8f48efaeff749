"""A throwaway extension, as somebody else would write it from CONTRIBUTING alone."""
