"""Origin of results beyond the project's own code: foreign plug-ins, git, machine, packages, and each sitting."""
