import functools
def find_processor(): return "x86-64-v3"
