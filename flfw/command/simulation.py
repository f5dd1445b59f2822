"""Command line of a run and of the tasks beside it, each of which is a flag: ``sim.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flfw.command import help as pages
from flfw.command.record import Command, parse, refuse_two_tasks
from flfw.files.exit_code import exit_code


def main(arguments: Sequence[str] | None = None, program: str = "sim.py") -> int:
    """Parse and run; return the exit code: 0 done, 1 failed, 2 bad input.

    Args:
        arguments: words behind the program's name; None: those of this process.
        program: name of the command, for messages.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(program, lambda: _do(words, program))


def _do(arguments: list[str], program: str) -> int:
    if pages.asked(arguments):
        print(pages.of_simulation(arguments))
        return 0
    command = parse(arguments, program=program)
    if command.list is not None:
        from flfw.command.early import check_listed
        from flfw.command.tasks import listed

        check_listed(command.list)
        print(listed(command.list))
        return 0
    refuse_two_tasks(command)
    from flfw.command import early

    early.check(command)
    return _perform(command, arguments, program)


def _perform(command: Command, arguments: list[str], program: str) -> int:
    """Do the one task that the command line asks for; return the exit code."""
    from flfw.command import tasks

    if command.matrix or command.seeds:
        return tasks.several(command)
    if command.table or command.cell:
        return tasks.table(command)
    if command.estimate:
        print(tasks.estimated(command.experiment))
    elif command.show_split:
        print(tasks.split_shown(command.experiment))
    elif command.compare:
        print(tasks.compared(command.compare))
    elif command.figures:
        print(*tasks.figures(command), sep="\n")
    elif command.purge:
        print(tasks.purged(command.purge))
    elif command.verify:
        return tasks.verified(command.verify, arguments, program)
    elif command.pdf is not None:
        return tasks.printed(command, arguments, program)
    else:
        from flfw.command.api.summary import summary

        print(summary(tasks.run(command, arguments, program)))
    return 0
