"""Modules with steps of a user: they wait, are slow, or kill their worker."""

from __future__ import annotations

HELD = """
import glob, threading

def held(sample):
    while begun_and_held(int(sample["key"][:2])):
        threading.Event().wait(0.005)
    return sample

def begun_and_held(number):
    try:
        with open("hold") as file:
            first = int(file.read())
    except FileNotFoundError:
        return False
    begun = (*glob.glob("out/.shardctl/*/job.json"), *glob.glob("tmp/*/files/out/.shardctl/*/job.json"))
    return number >= first and begun != ()
"""
"""A function that lets the inputs before the number in the file `hold` through, and the others when
that file is gone. The job of a conversion to a store lies in a scratch folder below tmp/."""

SLOW = """
import time
def slow(sample):
    time.sleep(0.05)
    return sample
"""

FATAL = """
import ctypes, os, signal

def segfault(sample):
    if "7" in sample["key"]:
        ctypes.string_at(0)
    return sample

def exhaust(sample):
    if "7" in sample["key"]:
        hoard = []
        while True:
            hoard.append(bytearray(64 << 20))
    return sample

def exhaust_in_c(sample):
    if "7" in sample["key"]:
        ctypes.CDLL(None).abort()
    return sample

def loop(sample):
    while "7" in sample["key"]:
        pass
    return sample

def hang(sample):
    while True:
        pass

def log_and_leave(sample):
    with open(os.environ["FATAL_LOG"], "a") as log:
        print(sample["key"], file=log)
    return leave(sample)

def leave(sample):
    if "7" in sample["key"]:
        os._exit(3)
    return sample

def killed(sample):
    if "7" in sample["key"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample

def talk(sample):
    print("working on", sample["key"], "\\x1b[2J")
    return sample

def where_from(sample):
    import wave
    return sample if "python" in wave.__file__ else None

def killed_once(sample):
    if "7" in sample["key"] and not os.path.exists(os.environ["KILLED_ONCE"]):
        open(os.environ["KILLED_ONCE"], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return sample
"""
