"""No two modules import each other, not even inside functions; imports for type hints alone do not count."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def test_no_modules_import_each_other() -> None:
    graph = grimp.build_graph("osmosis", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
