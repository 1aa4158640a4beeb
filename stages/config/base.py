"""What every section's schema shares: strict types, no unknown key, a docstring under every field."""

from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, ConfigDict, Field, JsonValue

Kwargs = dict[str, JsonValue]
"""Keyword arguments for a factory, as YAML can write them."""

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
"""A share of a whole, strictly between 0 and 1."""

Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A section of params.yaml: frozen, strictly typed, unknown keys and non-finite numbers refused.

    A field's docstring is its description: error messages, the UI's form and the docs show it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )


class StageParams(BaseModel):
    """What one stage reads of params.yaml. Each field is a section of that name, or `key("train.batch_size")`.

    Every stage reads `seed` and `threads`: `main` sets them. `declared()` is what the stage's `params:` in dvc.yaml
    must list; a test compares the two.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    seed: int
    threads: int

    @classmethod
    def declared(cls) -> list[str]:
        """The dotted keys of params.yaml that this stage reads, sorted."""
        return sorted(_dotted(name, field.validation_alias) for name, field in cls.model_fields.items())

    def by_key(self) -> dict[str, Any]:
        """JSON-ready values by dotted key of params.yaml, so that `restore` can write them back."""
        dumped = self.model_dump(mode="json")
        fields = type(self).model_fields.items()
        return {_dotted(name, field.validation_alias): dumped[name] for name, field in fields}


def key(dotted: str) -> Any:
    """A field of `StageParams` that is read from below a section: `batch_size: int = key("train.batch_size")`."""
    return Field(validation_alias=AliasPath(*dotted.split(".")))


def _dotted(name: str, alias: object) -> str:
    return ".".join(map(str, alias.path)) if isinstance(alias, AliasPath) else name


def accompanies(default: Any) -> Any:
    """A field that only accompanies a run (logging, save interval, time budget): left out of the fingerprint."""
    return Field(default=default, json_schema_extra={"accompanies": True})


def identifying(section: BaseModel) -> dict[str, Any]:
    """A section's values without those marked by `accompanies`: what the run *is*. JSON-ready, nested."""
    kept: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("accompanies"):
            continue
        kept[name] = _plain(getattr(section, name))
    return kept


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return identifying(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
