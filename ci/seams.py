"""Tell whether tests stand at seams: what they import, what they patch, where they look inside.

A name that tests import is exported if another package of the source imports it from that module.
Fails if fewer of 100 names than ``[share]`` of ci/shape.toml wants are exported.
"""

import ast
import sys

from shape import ROOT, SOURCE, budget, python_files


def imports_of(tree: ast.Module) -> list[tuple[str, str, str]]:
    """Return module, name and local name of each import from holdfast."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = [(str(node.module), a.name, a.asname or a.name) for node in nodes for a in node.names]
    return [names for names in found if names[0].split(".")[0] == "holdfast"]


def root_of(node: ast.expr) -> str:
    """Return the name that an expression begins with, or a path in text."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return str(node.value if isinstance(node, ast.Constant) else getattr(node, "id", ""))


def main() -> int:
    """Print the figures of all tests in one line; return 1 if the share is too small."""
    names, exported, patches, private = [], set(), 0, 0
    for path in python_files(*(ROOT / folder for folder in SOURCE)):
        package = ".".join(("holdfast", *path.parent.relative_to(ROOT).parts))
        for module, name, _ in imports_of(ast.parse(path.read_text("utf-8"))):
            if package not in (module, module.rpartition(".")[0]):
                exported.add((module, name))
    for path in python_files(ROOT / "tests"):
        found = imports_of(tree := ast.parse(path.read_text("utf-8")))
        names += [(module, name) for module, name, _ in found]
        own = {local for _, _, local in found}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                is_own = (root := root_of(node.args[0])) in own or root.startswith("holdfast.")
                patches += is_own and node.func.attr in ("setattr", "setitem", "patch", "object")
            elif isinstance(node, ast.Attribute) and root_of(node) not in ("self", "cls"):
                private += node.attr.startswith("_") and not node.attr.startswith("__")
    seen = sum(name in exported or name[0] in ("holdfast", "holdfast.testing") for name in names)
    share = 100 * seen // len(names)
    print(f"seams: {len(names)} imports, {share} % exported; {patches} patches, {private} private")
    return int(share < budget(ROOT)["share"]["exported"])


if __name__ == "__main__":
    sys.exit(main())
