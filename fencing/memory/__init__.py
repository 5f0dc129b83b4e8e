"""The smallest complete backend: locks in this process' memory. For tests without servers, and to copy from.

It has three parts, as every backend: the service (``table.py``), the plans, which decide without I/O, and the two
backends, which perform the plans' effects. The coordinators, which users call, each have one.
"""
