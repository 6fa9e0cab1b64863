"""A typed function's schema, and what becomes of the arguments that a model sends for it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from indelible.tools import BadArguments, Tool, ToolContext, tool

if TYPE_CHECKING:
    from collections import OrderedDict as OnlyForTypeCheckers


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = "K"


class Place(BaseModel):
    """Where."""

    title: str
    position: tuple[float, float] | None = None


class Strict(BaseModel, extra="forbid"):
    x: int = 0


class Tree(BaseModel):
    label: str = ""
    children: list[Tree] = []


@dataclass
class Window:
    width: int


@dataclass
class Numbered:
    p0: int


class Opaque:
    pass


@tool
async def weather(city: str, days: int = 1) -> str:
    return f"{city}/{days}"


@tool
def many(  # noqa: PLR0917 - a plain signature with all kinds of types
    place: Place,
    unit: Unit,
    mode: Literal["fast", "slow"],
    when: date,
    limit: Optional[int],  # noqa: UP045 - people write it
    tags: list[str] = [],  # noqa: B006 - people write it
    window: Window | None = None,
    share: Annotated[float, Field(description="Between 0 and 1.", ge=0, le=1)] = 0.5,
    extra: dict[str, Any] = {},  # noqa: B006
) -> None: ...


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def read_problems(made: Tool, arguments: str) -> str:
    with pytest.raises(BadArguments) as caught:
        made.validate(arguments)
    return str(caught.value)


# --- schemas -----------------------------------------------------------------------------


def test_a_simple_function_has_a_simple_schema() -> None:
    assert weather.input_schema == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    @tool
    def ping() -> str:
        return "pong"

    assert ping.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping.validate("") == ping.validate(" \n\t") == ping.validate("{}") == {}


def test_rich_types_are_described_without_made_up_titles() -> None:
    schema = many.input_schema
    assert list(schema["properties"]) == ["place", "unit", "mode", "when", "limit", "tags", "window", "share", "extra"]
    assert schema["required"] == ["place", "unit", "mode", "when", "limit"]
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"], "type": "string"}
    assert schema["properties"]["unit"] == {"$ref": "#/$defs/Unit"}
    assert schema["$defs"]["Unit"] == {"enum": ["C", "K"], "type": "string"}
    assert schema["properties"]["share"] == {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "default": 0.5,
        "description": "Between 0 and 1.",
    }
    assert schema["$defs"]["Place"]["description"] == "Where."
    assert schema["$defs"]["Place"]["properties"]["title"] == {"type": "string"}
    assert schema["$defs"]["Place"]["required"] == ["title"]
    json.dumps(schema)


def test_a_parameter_or_a_default_may_hold_the_word_title() -> None:
    @tool
    def rename(title: str, options: dict[str, str] = {"title": "x"}) -> None: ...  # noqa: B006

    assert list(rename.input_schema["properties"]) == ["title", "options"]
    assert rename.input_schema["properties"]["options"]["default"] == {"title": "x"}


def test_a_recursive_type_keeps_its_definition() -> None:
    @tool
    def grow(tree: Tree) -> None: ...

    assert grow.input_schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert grow.validate('{"tree": {"children": [{"label": "leaf"}]}}')["tree"].children[0].label == "leaf"
    deep = '{"children":[' * 90 + "]}" * 90
    assert isinstance(grow.validate(f'{{"tree":{deep}}}')["tree"], Tree)


def test_names_that_pydantic_keeps_for_itself_are_fine() -> None:
    @tool
    def odd(schema: str, json: int, model_config: str, _hidden: int, self_: str, copy: bool = False) -> None: ...

    assert list(odd.input_schema["properties"]) == ["schema", "json", "model_config", "_hidden", "self_", "copy"]
    sent = {"schema": "a", "json": 1, "model_config": "b", "_hidden": 2, "self_": "c"}
    assert odd.validate(json.dumps(sent)) == sent


def test_the_neutral_field_names_are_not_a_back_door() -> None:
    assert "p0: there is no such argument" in read_problems(weather, '{"city": "Oslo", "p0": "Rome"}')


def test_an_alias_names_an_argument_that_python_cannot() -> None:
    @tool
    def travel(from_: Annotated[str, Field(alias="from")]) -> str:
        """Go.

        Args:
            from_: Where the journey begins.

        """
        return from_

    assert travel.input_schema["properties"]["from"]["description"] == "Where the journey begins."
    assert travel.validate('{"from": "Oslo"}') == {"from_": "Oslo"}


def test_fields_inside_a_dataclass_keep_their_own_names() -> None:
    @tool
    def draw(first: Numbered) -> None: ...

    assert draw.validate('{"first": {"p0": 3}}') == {"first": Numbered(3)}
    assert read_problems(draw, '{"first": {"p0": 3, "first": 1}}') == "first.first: there is no such argument"


def test_a_default_that_json_cannot_carry_stays_with_the_function() -> None:
    marker = object()

    @tool
    def find(what: Any = marker) -> bool:
        return what is marker

    assert find.input_schema["properties"] == {"what": {}}
    assert find.validate("{}") == {}


# --- reading -----------------------------------------------------------------------------


def test_arguments_arrive_as_the_types_that_were_asked_for() -> None:
    values = many.validate(
        json.dumps(
            {
                "place": {"title": "Oslo", "position": [59.9, 10.7]},
                "unit": "K",
                "mode": "slow",
                "when": "2026-01-31",
                "limit": None,
                "window": {"width": 3},
                "share": 1,
            }
        )
    )
    assert values == {
        "place": Place(title="Oslo", position=(59.9, 10.7)),
        "unit": Unit.KELVIN,
        "mode": "slow",
        "when": date(2026, 1, 31),
        "limit": None,
        "window": Window(3),
        "share": 1.0,
    }


def test_what_the_model_left_out_keeps_the_functions_own_default() -> None:
    assert weather.validate('{"city": "Oslo"}') == {"city": "Oslo"}


def test_defaults_that_live_in_a_field_are_filled_in() -> None:
    @tool
    def search(
        query: str = Field(description="What to look for."),
        limit: int = Field(default=10, le=50),
        seen: Annotated[list[str], Field(default_factory=list)] = Field(),  # noqa: B008 - people write it
    ) -> None: ...

    assert search.input_schema["required"] == ["query"]
    assert search.input_schema["properties"]["query"]["description"] == "What to look for."
    assert search.validate('{"query": "x"}') == {"query": "x", "limit": 10, "seen": []}
    assert "limit" in read_problems(search, '{"query": "x", "limit": 51}')


def test_null_is_welcome_where_the_default_is_none() -> None:
    @tool
    def search(
        limit: int = None,  # type: ignore[assignment]  # noqa: RUF013 - people write it
        page: Annotated[int, Field(gt=0, description="From 1.")] = None,  # type: ignore[assignment]  # noqa: RUF013
    ) -> None: ...

    assert search.validate('{"limit": null, "page": null}') == {"limit": None, "page": None}
    assert search.input_schema["properties"]["page"]["description"] == "From 1."
    assert "page: Input should be greater than 0" in read_problems(search, '{"page": 0}')


def test_of_two_values_for_one_name_the_last_one_counts() -> None:
    assert weather.validate('{"city": "Oslo", "city": "Rome"}') == {"city": "Rome"}


def test_a_number_in_quotes_is_still_a_number() -> None:
    assert weather.validate('{"city": "Oslo", "days": "3"}') == {"city": "Oslo", "days": 3}


def test_unknown_fields_are_errors_and_the_known_ones_are_named() -> None:
    assert read_problems(weather, '{"city": "Oslo", "day": 3}') == (
        "day: there is no such argument\nThe arguments are: city, days"
    )

    @tool
    def nest(strict: Strict) -> None: ...

    assert read_problems(nest, '{"strict": {"y": 1}}') == "strict.y: there is no such argument"


def test_every_problem_has_its_line_and_names_its_field() -> None:
    text = read_problems(many, '{"place": {"position": [1]}, "unit": "F", "mode": "slow", "when": "soon", "limt": 3}')
    lines = text.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [
        "place.title",
        "place.position[1]",
        "unit",
        "when",
        "limit",
        "limt",
    ]
    assert "place.title: required, but missing" in lines
    assert lines[-1].startswith("The arguments are: place, unit, mode, when, limit,")
    assert "http" not in text
    assert "pydantic" not in text.lower()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{", "not valid JSON"),
        ('{"city": "Os', "not valid JSON"),
        ("{'city': 'Oslo'}", "not valid JSON"),
        ('{"city": "Oslo"} and more', "not valid JSON"),
        ('{"city": NaN}', "not valid JSON"),
        ("[]", "must be a JSON object, not an array"),
        ("null", "must be a JSON object, not null"),
        ("3", "must be a JSON object, not a number"),
        ("3.5", "must be a JSON object, not a number"),
        ("true", "must be a JSON object, not a boolean"),
        ('"{}"', "must be a JSON object, not a string"),
        ('{"city": "\\ud800"}', "not valid JSON"),
        ('{"city": 3}', "city: Input should be a valid string"),
        ('{"city": null}', "city: Input should be a valid string"),
        ('{"city": "Oslo", "days": 1.5}', "days: "),
        ('{"city": "Oslo", "days": ' + "9" * 5000 + "}", "not valid JSON"),
        ("{}", "city: required, but missing"),
        ("[" * 100_000, "not valid JSON"),
        ('{"city":' * 100_000, "not valid JSON"),
        ("\x00", "not valid JSON"),
    ],
)
def test_bad_arguments_are_explained(arguments: str, expected: str) -> None:
    assert expected in read_problems(weather, arguments)


def test_a_lone_surrogate_in_the_raw_text_is_replaced() -> None:
    assert weather.validate('{"city": "a\ud800b"}') == {"city": "a\ufffdb"}


def test_infinities_do_not_come_in_as_text() -> None:
    @tool
    def scale(factor: float) -> None: ...

    for sent in ('"inf"', '"NaN"', "1e999"):
        assert "finite" in read_problems(scale, f'{{"factor": {sent}}}')


def test_the_explanation_stays_short_whatever_the_model_wrote() -> None:
    @tool
    def total(numbers: list[int]) -> None: ...

    text = read_problems(total, json.dumps({"numbers": ["x"] * 10_000}))
    assert text.endswith("... and 9980 more problems")
    text = read_problems(total, json.dumps({"numbers": [], "a\nb" * 100_000: 1}))
    assert len(text) < 1200
    assert len(text.splitlines()) == 2


def test_a_validator_that_fails_in_its_own_way_still_gives_bad_arguments() -> None:
    def stumble(value: str) -> str:
        raise KeyError(value)

    def refuse(value: str) -> str:
        raise ValueError("must rhyme\nwith orange")

    def use(word: str) -> None: ...

    use.__annotations__["word"] = Annotated[str, AfterValidator(stumble)]
    assert "KeyError" in read_problems(tool(use), '{"word": "x"}')
    use.__annotations__["word"] = Annotated[str, AfterValidator(refuse)]
    assert read_problems(tool(use), '{"word": "x"}') == "word: Value error, must rhyme with orange"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["city", "days", "place", "unit"]), inner),
)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=())) | _JSON.map(json.dumps))
def test_any_text_is_read_or_refused_with_bad_arguments(text: str) -> None:
    for made in (weather, many, Tool.from_schema("raw", "", {}, echo)):
        try:
            values = made.validate(text)
        except BadArguments:
            continue
        assert isinstance(values, dict)


@settings(deadline=None)
@given(st.text(), st.integers())
def test_what_fits_the_types_comes_through_unchanged(city: str, days: int) -> None:
    assert weather.validate(json.dumps({"city": city, "days": days})) == {"city": city, "days": days}


# --- the context -------------------------------------------------------------------------


def test_the_context_is_not_the_models_to_give() -> None:
    @tool
    def look(context: ToolContext, at: str) -> None: ...

    @tool
    def glance(at: str, context: ToolContext | None = None) -> None: ...

    @tool
    def stare(at: str, *, seen: Annotated[ToolContext, "injected"]) -> None: ...

    for made, name in ((look, "context"), (glance, "context"), (stare, "seen")):
        assert list(made.input_schema["properties"]) == ["at"]
        assert f"{name}: there is no such argument" in read_problems(made, json.dumps({"at": "x", name: {}}))


# --- declarations that cannot work -------------------------------------------------------


def untyped(city) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def takes_nothing() -> None: ...


def takes_any(*cities: str) -> None: ...


def takes_names(**cities: str) -> None: ...


def takes_position(city: str, /) -> None: ...


def takes_opaque(city: str, thing: Opaque) -> None: ...


def takes_function(then: Callable[[], None]) -> None: ...


def takes_contexts(contexts: list[ToolContext]) -> None: ...


def takes_twins(a: Annotated[int, Field(alias="x")], x: int) -> None: ...


def takes_unimported(things: OnlyForTypeCheckers[str, str]) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (untyped, "'untyped': parameter 'city' has no type; write for example 'city: str'"),
        (takes_any, "'takes_any': parameter 'cities' takes any number of values; name each argument"),
        (takes_names, "'takes_names': parameter 'cities' takes any number of values; name each argument"),
        (takes_position, "'takes_position': parameter 'city' is positional only"),
        (takes_opaque, "'takes_opaque': parameter 'thing' cannot be described to a model as JSON"),
        (takes_function, "'takes_function': parameter 'then' cannot be described to a model as JSON"),
        (takes_contexts, "'takes_contexts': parameter 'contexts' cannot be described to a model as JSON"),
        (takes_twins, "'takes_twins': two parameters have the same name in JSON"),
        (takes_unimported, "'OnlyForTypeCheckers[str, str]' of parameter 'things' cannot be resolved"),
        (functools.partial(cast(Any, takes_nothing), 1), "its signature cannot be read"),
    ],
)
def test_a_declaration_that_cannot_work_says_what_to_do(function: Callable[..., Any], expected: str) -> None:
    with pytest.raises(TypeError) as caught:
        tool(function)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_type_defined_inside_a_function_is_named_in_the_error() -> None:
    class Local(BaseModel):
        x: int

    def use(local: Local) -> None: ...

    with pytest.raises(TypeError, match=r"the type 'Local' of parameter 'local' cannot be resolved.*top of the module"):
        tool(use)


def test_a_return_type_that_cannot_be_resolved_does_not_matter() -> None:
    def use(x: int) -> OnlyForTypeCheckers[str, str]:
        raise NotImplementedError

    assert tool(use).validate('{"x": 1}') == {"x": 1}


def test_an_unfinished_model_is_refused_when_the_tool_is_declared() -> None:
    class Unfinished(BaseModel):
        other: Missing  # type: ignore[name-defined]  # noqa: F821

    def use(x: int) -> None: ...

    use.__annotations__["x"] = Unfinished
    with pytest.raises(TypeError, match="parameter 'x' cannot be described"):
        tool(use)


# --- arguments of a given schema ---------------------------------------------------------


def test_a_given_schema_is_passed_on_as_it_is_and_cannot_be_changed_from_outside() -> None:
    given_schema: dict[str, Any] = {"type": "object", "title": "Kept", "properties": {"a": {"type": "string"}}}
    made = Tool.from_schema("raw", "", given_schema, echo)
    given_schema["properties"]["a"] = "changed"
    assert made.input_schema == {"type": "object", "title": "Kept", "properties": {"a": {"type": "string"}}}
    assert Tool.from_schema("raw", "", {}, echo).input_schema == {"type": "object", "properties": {}}


def test_a_given_schema_must_describe_an_object_and_be_json() -> None:
    with pytest.raises(ValueError, match="must be of type 'object', not 'array'"):
        Tool.from_schema("raw", "", {"type": "array"}, echo)
    with pytest.raises(TypeError):
        Tool.from_schema("raw", "", {"properties": {"a": object()}}, echo)
