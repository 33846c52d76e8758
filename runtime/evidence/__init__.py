"""What is kept of a worker that is about to die, or has died: its stacks, its last lines, its work.

The agent gathers it before it kills; journal and report show it.  Must not decide who is killed,
and must not wait.
"""
