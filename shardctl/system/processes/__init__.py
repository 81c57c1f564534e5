"""Child processes that do tasks, and that may die. They end with their parent, and a death is
noticed at once.

There are three pools, because processes start in three ways:

    pool.py                Tasks for a module of ours. Its workers are forked from a process that has loaded the module,
                           which takes 5 ms. It knows at which input a worker died.
    forked_pool.py         Tasks for a person's function, which only a fork of the caller's process has.
    loader/processes/      Batches in shared memory. New Pythons make them, which have nothing of the caller's program.

All pools are made of these:

    fork.py                A forked process runs a function, and ends with its parent; a new Python runs a module of ours.
    channel.py             Objects and errors are sent over a socket, whose end tells that the other process is dead.

Made for pool.py:

    forkserver.py          The process that workers are forked from, what a worker does there with its tasks, and how the
                           process that needs workers asks for them.
    worker_state.py        What a worker is at, in memory that outlives it, and how it ended.
"""
