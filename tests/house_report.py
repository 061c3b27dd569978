"""How large the house is and how it hangs together: `python tests/house_report.py [ROOT]` prints it as a table.

Lines a folder, files over 250 lines, functions over 40, more than 6 parameters, and import cycles. A cycle that a late
import, inside a function, keeps from failing is one, too: `late` counts those as well.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("zoo", "eval", "train", "serve")
LONG_FILE, LONG_FUNCTION, MANY_PARAMETERS = 250, 40, 6


def modules(root: Path) -> dict[str, Path]:
    """The files of the packages by the module's full name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, lines and parameters of each function of a file; `self` and `cls` are no parameters."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(one.arg not in ("self", "cls") for one in given)
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1, count


def import_graph(root: Path, *, late: bool = False) -> dict[str, set[str]]:
    """Which module imports which of ours when it is imported itself; late: or at any later time."""
    known = modules(root)
    graph = {}
    for name, path in known.items():
        found: set[str] = set()
        for node in _imports(ast.parse(path.read_text()), late=late):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            else:
                found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        graph[name] = {one for one in found if one in known and one != name}
    return graph


def _imports(tree: ast.AST, *, late: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif late or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(node, late=late)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other, each sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in graph[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {tuple(sorted(o for o in reach[name] if name in reach[o])) for name in graph if name in reach[name]}
    return sorted(map(list, groups))


def lines_by_folder(root: Path) -> dict[str, int]:
    """Lines of Python of each folder."""
    found: dict[str, int] = {}
    for path in modules(root).values():
        folder = str(path.parent.relative_to(root))
        found[folder] = found.get(folder, 0) + len(path.read_text().splitlines())
    return found


def report(root: Path) -> str:
    """The whole report as lines of `what: value`."""
    files = modules(root)
    every = {f"{name}.{function}": rest for name, path in files.items() for function, *rest in functions(path)}
    long = {name: lines for name, (lines, _) in every.items() if lines > LONG_FUNCTION}
    many = {name: count for name, (_, count) in every.items() if count > MANY_PARAMETERS}
    large = {name: n for name, path in files.items() if (n := len(path.read_text().splitlines())) > LONG_FILE}
    folders = lines_by_folder(root)
    return "\n".join(
        [
            f"files: {len(files)}, lines: {sum(folders.values()):,}, functions: {len(every):,}",
            f"lines a folder: {', '.join(f'{folder} {n:,}' for folder, n in folders.items())}",
            f"functions over {LONG_FUNCTION} lines: {len(long)} {_largest(long)}",
            f"functions of over {MANY_PARAMETERS} parameters: {len(many)} {_largest(many)}",
            f"files over {LONG_FILE} lines: {len(large)} {_largest(large)}",
            f"import cycles: {len(cycles(import_graph(root)))} {cycles(import_graph(root))}",
            f"import cycles, late imports included: {(found := cycles(import_graph(root, late=True))) and len(found)} "
            f"{found}",
        ]
    )


def _largest(found: dict[str, int], n: int = 8) -> str:
    ranked = sorted(found.items(), key=lambda one: -one[1])[:n]
    return f"({', '.join(f'{name} {value}' for name, value in ranked)})" if ranked else ""


if __name__ == "__main__":
    print(report(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
