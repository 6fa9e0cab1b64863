"""From a typed function to a JSON schema, and from a model's JSON to checked arguments.

A tool's parameters are read once, when it is declared, into a pydantic model; everything that
cannot work (a parameter without a type, a type that JSON cannot carry) is an error there and
then, never in the middle of a chat. The model's fields have neutral names and carry the
parameters' names as aliases, so a parameter may be called `schema` or `_id` or whatever else
pydantic keeps for itself.

At a call only `BadArguments` can come out, whatever the model wrote. Its text goes back to the
model: one line per problem, each naming the field. Checking is lenient as pydantic is for JSON
("5" is a fine integer), strict about names (an unknown field is an error), and a parameter the
model left out keeps the function's own default.

What the developer has bound with `functools.partial` is the developer's: the model neither
sees it nor can set it. A parameter annotated with the injected type (`ToolContext`, handed in
by tool.py) is filled when the tool runs.

The docstring is read for the model, too: what the tool does, and what each argument is. Only one form of parameter list
is understood, the indented `Args:` section, and only when every entry in it names a parameter. Then the entries go to
the schema and leave the description. Anything else stays text: a docstring that was parsed half right would give the
model something that its author did not write.

Must stay true: `read` returns or raises `BadArguments`, nothing else, for arbitrary text
(tests/tools/test_tool_schema.py); a docstring without a clean `Args:` section comes back word for word, and no entry is
both in the description and in the schema (tests/tools/test_tool.py).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Final, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import from_json

from indelible.content.unicode import clean_text
from indelible.tools.output import BadArguments, render_output

_MAX_PROBLEMS: Final = 20
_MAX_PROBLEM_CHARACTERS: Final = 1000
_WORDING: Final = {
    "missing": "required, but missing",
    "extra_forbidden": "there is no such argument",
    "unexpected_keyword_argument": "there is no such argument",
}
_MAPS_OF_SCHEMAS: Final = ("properties", "patternProperties", "$defs")
_PLAIN_VALUES: Final = ("default", "const", "enum", "examples")
_JSON_NAMES: Final[Mapping[type, str]] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


class Arguments(Protocol):
    """How a tool receives its arguments."""

    @property
    def schema(self) -> dict[str, Any]:
        """What the model may send."""

    def read(self, text: str) -> dict[str, Any]:
        """The arguments, checked, or `BadArguments`."""

    def bind(self, function: Callable[..., Any], values: dict[str, Any], context: object) -> Callable[[], Any]:
        """The call, ready to be made."""


def parse_arguments(text: str) -> dict[str, Any]:
    """The JSON object in a call's raw arguments; no text at all is an empty one."""
    try:
        parsed = from_json(clean_text(text.strip() or "{}"), allow_inf_nan=False)
    except ValueError as error:
        raise BadArguments(f"The arguments are not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise BadArguments(f"The arguments must be a JSON object, not {_JSON_NAMES[type(parsed)]}")
    return parsed


# --- arguments that become a function's parameters ---------------------------------------


class NamedArguments:
    """One argument per parameter of a typed function."""

    def __init__(self, function: Callable[..., Any], *, name: str, injected: type) -> None:
        self._context_names: list[str] = []
        self._defaulted: set[str] = set()
        self._fields: dict[str, str] = {}
        types: dict[str, Any] = {}
        for parameter in read_parameters(function, name=name):
            hint = _resolve_type(function, parameter, name=name)
            if _mentions(hint, injected):
                self._context_names.append(parameter.name)
                continue
            field = f"p{len(types)}"
            self._fields[field] = parameter.name
            required = parameter.default is inspect.Parameter.empty
            types[field] = (_to_field_type(hint, parameter), ... if required else parameter.default)
            if not (required or isinstance(parameter.default, FieldInfo)):
                self._defaulted.add(parameter.name)
        self._model, self._schema = self._build(types, name)
        if len(self._schema["properties"]) < len(types):
            raise TypeError(f"tool {name!r}: two parameters have the same name in JSON; give each its own alias")

    def _build(self, types: dict[str, Any], name: str) -> tuple[type[BaseModel], dict[str, Any]]:
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        try:
            model = create_model(name, __config__=config, **types)
            return model, _drop_titles(model.model_json_schema(schema_generator=_QuietSchema))
        except Exception as error:
            guilty = next((self._fields[field] for field in types if not _fits_json(types[field])), None)
            place = f"parameter {guilty!r}" if guilty else "the parameters"
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise TypeError(
                f"tool {name!r}: {place} cannot be described to a model as JSON; use str, int, float, bool, "
                f"list, dict, Literal, an enum, a dataclass or a pydantic model ({reason})"
            ) from error

    @property
    def schema(self) -> dict[str, Any]:
        return self._schema

    @property
    def parameter_names(self) -> list[str]:
        """Every parameter, in the schema or injected."""
        return [*self._fields.values(), *self._context_names]

    def describe(self, descriptions: Mapping[str, str]) -> None:
        """Add descriptions of parameters that have none yet."""
        for field, parameter in self._fields.items():
            alias = self._model.model_fields[field].alias
            described = self._schema["properties"].get(alias)
            if described is not None and descriptions.get(parameter):
                described.setdefault("description", descriptions[parameter])

    def read(self, text: str) -> dict[str, Any]:
        parse_arguments(text)
        try:
            checked = self._model.model_validate_json(clean_text(text.strip() or "{}"))
        except ValidationError as error:
            raise BadArguments(_explain(error, list(self._schema["properties"]))) from error
        except Exception as error:
            raise BadArguments(
                f"The arguments could not be checked: {_to_line(f'{type(error).__name__}: {render_output(error)}')}"
            ) from error
        given = checked.model_fields_set
        return {
            parameter: getattr(checked, field)
            for field, parameter in self._fields.items()
            if field in given or parameter not in self._defaulted
        }

    def bind(self, function: Callable[..., Any], values: dict[str, Any], context: object) -> Callable[[], Any]:
        return functools.partial(function, **values, **dict.fromkeys(self._context_names, context))


# --- arguments that stay one object ------------------------------------------------------


class WholeObject:
    """The parsed object as it came, for a tool whose schema was given (and is checked elsewhere)."""

    def __init__(self, function: Callable[..., Any], schema: dict[str, Any], *, name: str) -> None:
        if schema.get("type", "object") != "object":
            raise ValueError(f"tool {name!r}: the input schema must be of type 'object', not {schema['type']!r}")
        self._schema: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode({"type": "object", "properties": {}} | schema)
        )
        signature = inspect.signature(function)
        self._accepts_context = _accepts(signature, 2)
        if not (self._accepts_context or _accepts(signature, 1)):
            raise TypeError(f"tool {name!r}: its function must take (arguments) or (arguments, context)")

    @property
    def schema(self) -> dict[str, Any]:
        return self._schema

    def read(self, text: str) -> dict[str, Any]:
        return parse_arguments(text)

    def bind(self, function: Callable[..., Any], values: dict[str, Any], context: object) -> Callable[[], Any]:
        given = (values, context) if self._accepts_context else (values,)
        return functools.partial(function, *given)


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


# --- reading a function ------------------------------------------------------------------


def find_definition(function: Callable[..., Any]) -> Callable[..., Any]:
    """The `def` behind a partial, a bound method, a decorator or an object with `__call__`."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = inspect.unwrap(function)
        elif inspect.isroutine(function):
            return function
        else:
            function = type(function).__call__


def read_parameters(function: Callable[..., Any], *, name: str) -> list[inspect.Parameter]:
    """The parameters that are still open, each with a name and a type; else a TypeError that says what to do."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError, NameError) as error:
        raise TypeError(
            f"tool {name!r}: its signature cannot be read ({error}); wrap it in a typed function"
        ) from error
    bound = function.keywords if isinstance(function, functools.partial) else {}
    open_parameters = [parameter for parameter in parameters.values() if parameter.name not in bound]
    for place, parameter in enumerate(open_parameters):
        what = f"tool {name!r}: parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{what} takes any number of values; name each argument and give it a type")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{what} is positional only; a model names its arguments, so remove the '/'")
        if parameter.annotation is parameter.empty and place == 0 and parameter.name in ("self", "cls"):
            raise TypeError(f"{what} is not bound; make the tool from the bound method: tool(thing.{name})")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"{what} has no type; write for example '{parameter.name}: str'")
    return open_parameters


def _resolve_type(function: Callable[..., Any], parameter: inspect.Parameter, *, name: str) -> Any:
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    namespace = getattr(find_definition(function), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=namespace, include_extras=True)[parameter.name]
    except Exception as error:
        raise TypeError(
            f"tool {name!r}: the type {parameter.annotation!r} of parameter {parameter.name!r} cannot be resolved "
            f"({type(error).__name__}: {error}); define or import it at the top of the module, "
            f"outside functions and 'if TYPE_CHECKING'"
        ) from error


def _mentions(hint: object, wanted: type) -> bool:
    """Whether the type is `wanted`, or `wanted` with None or notes beside it."""
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(_mentions(part, wanted) for part in get_args(hint))
    return hint is wanted or get_origin(hint) is wanted


def _to_field_type(hint: Any, parameter: inspect.Parameter) -> Any:
    """The parameter's type with its name in JSON (its own notes may give another); null may stand for a None."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kind = kind | None if parameter.default is None else kind
    return Annotated[kind, Field(alias=parameter.name), *notes]


# --- schemas -----------------------------------------------------------------------------


class _QuietSchema(GenerateJsonSchema):
    """A default that JSON cannot carry is left out of the schema; the function still has it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


def _drop_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic makes up from names."""
    if isinstance(schema, list):
        return [_drop_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _PLAIN_VALUES:
            plain[key] = value
        elif key in _MAPS_OF_SCHEMAS:
            plain[key] = {name: _drop_titles(one) for name, one in value.items()}
        elif key != "title":
            plain[key] = _drop_titles(value)
    return plain


def _fits_json(field: Any) -> bool:
    try:
        create_model("Probe", field=field).model_json_schema(schema_generator=_QuietSchema)
    except Exception:  # pydantic and the type's own hooks may raise anything
        return False
    return True


# --- error texts for the model -----------------------------------------------------------


def _explain(error: ValidationError, names: list[str]) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        _to_line(f"{_to_path(problem['loc'])}: {_WORDING.get(problem['type'], problem['msg'])}")
        for problem in problems[:_MAX_PROBLEMS]
    ]
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"... and {len(problems) - _MAX_PROBLEMS} more problems")
    if any(problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1 for problem in problems):
        lines.append(f"The arguments are: {', '.join(names) or 'none'}")
    return "\n".join(lines)


def _to_path(location: tuple[int | str, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".") or "arguments"


def _to_line(text: str) -> str:
    """One short line: a field's name may be anything that the model invented."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_PROBLEM_CHARACTERS else line[:_MAX_PROBLEM_CHARACTERS] + "..."


_HEADING: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\s+(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def split_docstring(docstring: str, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """The description without its `Args:` section, and that section as {parameter: text}."""
    lines = docstring.splitlines()
    start = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line)), None)
    if start is None:
        return docstring, {}
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
        end += 1
    entries = _read_entries([line for line in lines[start + 1 : end] if line.strip()])
    if not entries or not set(entries) <= set(parameters):
        return docstring, {}
    before, after = "\n".join(lines[:start]).strip(), "\n".join(lines[end:]).strip()
    return "\n\n".join(filter(None, (before, after))), entries


def _read_entries(lines: list[str]) -> dict[str, str]:
    """The entries by name; empty when a line is neither an entry nor indented below one."""
    entries: dict[str, str] = {}
    name = ""
    for line in lines:
        if _indent_of(line) > _indent_of(lines[0]) and name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None or _indent_of(line) < _indent_of(lines[0]):
            return {}
        name = entry[1]
        entries[name] = entry[2].strip()
    return entries


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())
