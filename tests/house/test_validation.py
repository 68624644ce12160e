"""The one translation of pydantic's errors: the path as the file has it, what is wrong, and what would be right."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError, model_validator

from tidegrid.errors import InputError
from tidegrid.validation import first_error, input_errors


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Annotated[StrictInt, Field(ge=1)] = 1
    weight: Annotated[StrictInt | StrictFloat, Field(ge=0, allow_inf_nan=False)] = 0
    limit: StrictInt | dict[str, StrictInt] = 0
    kind: Literal["a", "b"] = "a"
    on: bool = True

    @model_validator(mode="after")
    def _is_sound(self) -> "Part":
        if self.size == 13:
            raise InputError("is unlucky", field="size", fix="write 12")
        return self


class Whole(BaseModel):
    parts: Annotated[list[Part], Field(min_length=1)]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"size": 0}, "parts[0].size: 0 is out of range; give a number greater than or equal to 1"),
        ({"size": "1"}, 'parts[0].size: "1" is not a whole number; write one'),
        ({"size": 13}, "parts[0].size: is unlucky; write 12"),
        ({"weight": "x"}, 'parts[0].weight: "x" is not a number; write 0 or more'),
        ({"weight": -1}, "parts[0].weight: -1 is out of range; write 0 or more"),
        ({"weight": float("nan")}, "parts[0].weight: NaN is not a finite number; write 0 or more"),
        ({"limit": {"h100": "x"}}, 'parts[0].limit.h100: "x" is not a whole number; write one'),
        ({"kind": "c"}, "parts[0].kind: \"c\" is not known; write 'a' or 'b'"),
        ({"colour": 1}, "parts[0].colour: is unknown; use some of size, kind"),
        (7, "parts[0]: 7 is not a JSON object; write {…}"),
    ],
)
def test_each_problem_is_told_once_with_its_path_and_its_fix(part: Any, said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Whole.model_validate({"parts": [part]})
    told = input_errors(raised.value, {"weight": "write 0 or more"}, ["size", "kind"])
    assert [str(one) for one in told] == [said]


def test_many_problems_are_one_line_that_counts_them() -> None:
    with pytest.raises(ValidationError) as raised:
        Whole.model_validate({"parts": [{"size": 0}] * 3000})
    told = str(first_error(raised.value))
    assert told.startswith("parts[0].size: 0 is out of range (and 2999 more problems); ")
    with pytest.raises(ValidationError) as raised:
        Whole.model_validate({"parts": []})
    assert str(first_error(raised.value)) == "parts: is empty; give at least one"
