"""The parts of the core that extensions are built on: twelve modules, and nothing else of it.

They import a name from the module that has it when it is first used, so that a command that needs little starts
quickly. What is here keeps its meaning; what is not may change at any time.
"""
