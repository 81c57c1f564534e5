"""Child processes that do tasks, and that may die. They end with their parent, and a death is
noticed at once.

There are three pools, because processes start in three ways:

    pool.py                Tasks for a module of ours. Its workers are forked from a process that has loaded the module,
                           which takes 5 ms. It knows at which input a worker died.
    forked_pool.py         Tasks for a person's function, which only a fork of the caller's process has.
    loader/processes/      Batches in shared memory. New Pythons make them, which have nothing of the caller's program.

All pools are made of these, and so is a process of another Python (benchmark/peers/remote.py) where
it can be:

    fork.py                A forked process runs a function, and ends with its parent.
    interpreter.py         A new Python runs a module of ours.
    channel.py             Objects are sent over a socket, whose end tells that the other process is dead.
    remote_error.py        An error is raised in another process, with its traceback.
    death.py               How a process ended, its last words, and how long one may take to end.

Made for pool.py:

    forkserver.py          The process that workers are forked from.
    forkserver_client.py   The same, as seen by the process that needs workers.
    worker_loop.py         What a worker does with its tasks, which are pickled.
    progress_slot.py       What a worker is at, in memory that outlives it.
"""
