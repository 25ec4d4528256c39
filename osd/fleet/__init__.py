"""Several serving processes: behind one port on one machine, and on several machines over one store.

on one machine (`osd serve --workers N`)
    parent     starts the processes, watches them, starts dead ones anew, passes signals on
    child      what the parent starts: one server, in one seat
    board      a page of memory that all of them share: who is there, and what each has to do
    seat       one process's place: its line on the board, who answers the admin port, what its peers measure
    accepting  the shared socket: who has less to do takes the next connection

over one store
    presence   a thread that says in the database that this process lives, and hears whether it is to drain
    trial      a new version on one worker first: is it worse than what the others serve?
    comparing  the arithmetic of that
"""
