"""Child processes that do tasks, and that may die. They end with their parent, and a death is noticed at once.

There are three kinds of pools, because processes start in three ways:

    pool.py                tasks for a module of ours: workers are forked from a process that has it loaded, and take 5 ms to
                           start. Its messages are JSON, and it knows at which input a worker died
    forked_pool.py         tasks for a person's function, which only a fork of the caller's process has
    loader/processes/      batches in shared memory, for which new Pythons start that have nothing of the caller's program

What they are made of, and what a process of another Python needs too (benchmark/peers/remote.py):

    fork.py                a forked process: runs a function, and ends with its parent
    interpreter.py         a new Python that runs a module of ours
    channel.py             objects sent over a socket, and the end of it when the other process is dead
    remote_error.py        an error that is raised in the other process, with its traceback
    death.py               how a process ended, what it said last, and the patience with one that should end

What only pool.py is made of:

    forkserver.py          the process that workers are forked from
    forkserver_client.py   the same, as the process sees it that needs workers
    worker_loop.py         what a worker does
    progress_slot.py       what a worker is at, in memory that outlives it
"""
