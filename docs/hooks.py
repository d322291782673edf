"""Hooks of MkDocs: they write the reference from the code, and make links to files outside of docs/ work in the site.

A comment such as `<!-- plug-ins: algorithm -->` in a page is replaced by what its function in `PARTS` returns.
A file that a page links to and that lies outside of docs/ becomes a page of the site, so that the site needs no
repository.
"""

from __future__ import annotations

import functools
import inspect
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from fedshift.algorithms import Training
from fedshift.analysis.numbers import SCHEMA
from fedshift.cli.parser import parser
from fedshift.core import registry
from fedshift.io import paths
from fedshift.study import declaration

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md"}
"""Pages of the site that are files of the root, by the names of the files."""
LINK = re.compile(r"(?P<code>^(?P<fence>~~~+|```+).*?^(?P=fence)|`+[^`\n]*`+)|\]\((?P<target>[^)\s]+)\)", re.M | re.S)
PART = re.compile(r"^<!-- ([a-z-]+)(?:: (\S+))? -->$", re.M)
FENCE = "~" * 8


# ---- the site


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put all pages of a folder in the place of an entry such as `Decisions: decisions/*` in the navigation."""

    def opened(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: opened(inside) for title, inside in entry.items()}
        if isinstance(entry, list):
            return [opened(inside) for inside in entry]
        if entry.endswith("/*"):
            pages = sorted(
                Path(config.docs_dir, entry).parent.glob("*.md"), key=lambda page: (page.stem != "README", page)
            )
            return [page.relative_to(config.docs_dir).as_posix() for page in pages]
        return entry

    config.nav = opened(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are files of the root, and a page for each file outside of docs/ that a page links to."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    plugins = {_file(cls) for kind in registry.KINDS for cls in registry.discover(kind).values()}
    linked = {path for page in files.documentation_pages() for path in _outside(page)}
    for path in sorted(plugins | linked):
        files.append(File.generated(config, _source_page(path), content=_source(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose parts are written and whose links lead to pages of the site."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    markdown = PART.sub(lambda found: PARTS[found[1]](found[2] or ""), markdown)
    return LINK.sub(lambda found: found["code"] or f"]({_link(found['target'], uri)})", markdown)


def _origin(uri: str) -> str:
    """Return the path in the repository of the file that a page is made from."""
    return {page: name for name, page in PAGES.items()}.get(uri, f"docs/{uri}")


def _target(target: str, uri: str) -> str | None:
    """Return the path in the repository of what a page links to, or None for an address and for a place in a page."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(_origin(uri)), path))


def _outside(page: File) -> Iterator[str]:
    """Yield the paths of all files that a page links to, outside of docs/ and of the pages of the root."""
    for found in LINK.finditer(page.content_string):
        path = _target(found["target"], page.src_uri) if found["target"] else None
        if path and not path.startswith("docs/") and path not in {*PAGES, "README.md"}:
            yield path


def _link(target: str, uri: str) -> str:
    """Return the target of a link in a page as MkDocs knows it: relative to the page."""
    path = _target(target, uri)
    if path is None:
        return target
    known = {"README.md": "index.md", "docs": "index.md", **PAGES}
    page = known.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else _source_page(path))
    return posixpath.relpath(page, posixpath.dirname(uri) or ".") + target[len(target.partition("#")[0]) :]


# ---- sources


def _source_page(path: str) -> str:
    return f"source/{path}.md"


def _source(path: str) -> str:
    """Return the page of a source file, with line numbers that links can name, or of a folder."""
    file = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {file.name}\n\n`{path}`\n\n"
    if file.is_dir():
        names = sorted(f"{child.name}/" if child.is_dir() else child.name for child in file.glob("[!_]*"))
        return head + "".join(f"- `{name}`\n" for name in names)
    text = file.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    return head + highlight(text, lexer, HtmlFormatter(cssclass="highlight", linenos="inline", linespans="L"))


def _file(cls: type[Any]) -> str:
    """Return the path in the repository of the module that holds a class."""
    return f"src/{cls.__module__.replace('.', '/')}.py"


# ---- parts of pages


def plugins(kind: str) -> str:
    """Return a section for each plug-in of a kind: its docstring, its settings, and where its code is."""
    classes = sorted(registry.discover(kind).items())
    definitions = {key: value for _, cls in classes for key, value in cls.model_json_schema().get("$defs", {}).items()}
    return "\n".join([*(_plugin(name, cls) for name, cls in classes), _sections(definitions)])


def _plugin(name: str, cls: type[registry.Plugin]) -> str:
    lines, first = inspect.getsourcelines(cls)
    last, path = first + len(lines) - 1, _file(cls)
    where = f"[`{path}`, lines {first} to {last}](../../{path}#L-{first})"
    aliases = f"Earlier names: {', '.join(f'`{alias}`' for alias in cls.aliases)}.\n\n" if cls.aliases else ""
    settings = _settings(cls.model_json_schema()) or "No settings.\n"
    return f"## {name} {{ #{name} }}\n\n{_prose(inspect.getdoc(cls) or '')}\n\n{aliases}{settings}\nCode: {where}\n"


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: signs of formulas stand for themselves, indented lines stay as they are."""

    def plain(found: re.Match[str]) -> str:
        return found[1] or {"<": "&lt;"}.get(found[2], f"\\{found[2]}")

    lines = docstring.splitlines()
    return "\n".join(line if line.startswith("    ") else re.sub(r"(`[^`]*`)|([*_<[])", plain, line) for line in lines)


def _settings(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> str:
    """Return the table of the properties of a JSON schema, or an empty text if there are none."""
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", "required" if name in required else _default(field), _values(field, definitions), _meaning(field))
        for name, field in schema.get("properties", {}).items()
    ]
    return _table(("setting", "default", "values", "meaning"), rows) if rows else ""


def _sections(definitions: Mapping[str, Any]) -> str:
    """Return a section for each definition of a JSON schema that has properties, to which `_values` links."""
    return "\n".join(
        f"## {name} {{ #{name.lower()} }}\n\n{_prose(inspect.cleandoc(definition.get('description', '')))}\n\n"
        f"{_settings(definition, definitions)}"
        for name, definition in definitions.items()
        if "properties" in definition
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [header, [":--"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in cells)


def _meaning(field: Mapping[str, Any]) -> str:
    return _prose(" ".join(field.get("description", "").split()))


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if isinstance(default, dict) and len(default) > 3:
        return "empty fields"
    return "none" if default in (None, "") else f"`{_yaml(default)}`"


def _yaml(value: Any) -> str:
    """Return plain data as a study writes it, in one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(item)}' for key, item in value.items())}}}"
    return "null" if value is None else str(value)


BOUNDS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}
"""Words for the bounds of a JSON schema, in the order in which they are shown."""
TYPES = {
    "number": "number",
    "integer": "whole number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "mapping",
    "array": "list",
}


def _values(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return in words which values a field of a JSON schema takes."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        definition = definitions.get(name, {})
        shown = "properties" in definition
        return f"[{name}](#{name.lower()})" if shown else _values(definition, definitions)
    if "anyOf" in field:
        options = list(_options(field))
        kind = next(filter(None, (_kind(option.get("enum", ())) for option in options)), "")
        if kind:
            return kind + (", by name or with settings" if any("properties" in option for option in options) else "")
        return " or ".join(dict.fromkeys(_values(option, definitions) for option in field["anyOf"]))
    if "enum" in field:
        return _kind(field["enum"]) or ", ".join(f"`{_yaml(value)}`" for value in field["enum"])
    if "const" in field:
        return f"`{_yaml(field['const'])}`"
    if field.get("type") == "object" and "properties" in field:
        if field["properties"].keys() == Training.model_fields.keys():
            return "mapping of [settings](#training)"
        inside = (f"`{key}`: {_values(value, definitions)}" for key, value in field["properties"].items())
        return f"mapping ({'; '.join(inside)})"
    what = TYPES.get(field.get("type", ""), "any")
    if "items" in field:
        what += f" of {_values(field['items'], definitions)}"
    if field.get("format") == "path":
        what = "path"
    return ", ".join([what, *(words.format(_yaml(field[key])) for key, words in BOUNDS.items() if key in field)])


def _options(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the choices of a field of a JSON schema, at any depth of choices."""
    if "anyOf" not in field:
        yield field
    for option in field.get("anyOf", ()):
        yield from _options(option)


def _kind(values: Sequence[Any]) -> str:
    """Return a link to the plug-ins of the kind whose names are these values, or an empty text."""
    for kind in registry.KINDS:
        if sorted(map(str, values)) == registry.names(kind):
            return f"[{kind}]({kind}s.md)"
    return ""


def study(name: str) -> str:
    """Return the keys of a study's YAML file, with a section for each part that they name."""
    schema = declaration.schema()
    training = f"## Training {{ #training }}\n\n{_settings(Training.model_json_schema())}\n"
    return f"{_settings(schema)}\n{training}\n{_sections(schema['$defs'])}"


def commands(name: str) -> str:
    """Return the commands of `fedshift`, each with its help."""
    top = parser()
    (choice,) = [action for action in top._actions if isinstance(action.choices, Mapping)]
    sections = [f"{FENCE} text\n{top.epilog}\n{FENCE}\n"]
    for command, sub in choice.choices.items():
        sub.formatter_class = functools.partial(sub.formatter_class, width=100)
        sections.append(f"## {command} {{ #{command} }}\n\n{FENCE} text\n{sub.format_help()}{FENCE}\n")
    return "\n".join(sections)


def files(name: str) -> str:
    """Return the files of a folder of results, with their meaning, from a class of `io.paths`."""
    folder: dict[str, Any] = vars(getattr(paths, name))
    held = getattr(paths, name)(Path())
    rows = [
        (f"`{value}`", _prose(" ".join((inspect.getdoc(member) or "").split())))
        for key, member in folder.items()
        if isinstance(member, property) and isinstance(value := getattr(held, key), Path)
    ]
    return _table(("file", "what it holds"), rows)


def names(module: str) -> str:
    """Return the public names of a module, for mkdocstrings to describe."""
    return "\n".join(f"::: {module}.{name}\n" for name in import_module(module).__all__)


def numbers(_: str) -> str:
    """Return the columns of the table of numbers."""
    types = {"str": "text", "float64": "number", "Int64": "whole number", "boolean": "true or false"}
    rows = [(f"`{names.replace(' ', '`, `')}`", types[dtype], meaning) for names, (dtype, meaning) in SCHEMA.items()]
    return _table(("column", "type", "meaning"), rows)


PARTS: dict[str, Callable[[str], str]] = {
    "plug-ins": plugins,
    "study": study,
    "commands": commands,
    "files": files,
    "numbers": numbers,
    "names": names,
}
"""Functions that write parts of pages, by the words that stand for them in a comment."""
os.environ.setdefault("COLUMNS", "100")
