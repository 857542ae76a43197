"""What a process of DIN gives up for good before it reads what a stranger wrote.

Nothing here needs a library or a privilege: system calls of the kernel alone, by number.
"""
