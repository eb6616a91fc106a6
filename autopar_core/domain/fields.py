"""What a strategy consists of: fields, each owned by one plugin, decided level by level."""

from __future__ import annotations

from enum import IntEnum

from attrs import frozen


class Level(IntEnum):
    """The order in which the fields of a candidate are decided and filtered."""

    DEGREE = 0
    BATCH = 1
    SCHEDULE = 2
    CHUNKS = 3
    SHARDING = 4
    RECOMPUTE = 5


Value = int | bool | str


@frozen(kw_only=True)
class Field:
    """One scalar field of a strategy, stored as an int64 column.

    Attributes:
        name: Key in every output, for instance ``"tp_degree"``.
        short: Short form on the command line and in the search section, ``"tp"``.
        level: When it is decided.
        neutral: Value that means "not used"; what an absent plugin leaves in the output.
        choices: Spellings of an enumeration; the column holds the index. Empty for numbers.
        boolean: The column holds 0 or 1 and is shown as true or false.
        needs: When the field means something; elsewhere it is normalised to ``neutral`` before rows
            are compared. Conditions joined by commas, all of which must hold: the name of a degree
            field (more than one), of a role (the dimensions that replicate it have more than one
            rank together), ``field=value`` or ``field>number``.
        owner: Plugin that owns it; the core fills it in.
        doc: One sentence for the documents and the schema.
        unit: Unit of the value, empty for counts.
    """

    name: str
    short: str
    level: Level
    neutral: Value
    choices: tuple[str, ...] = ()
    boolean: bool = False
    needs: str = ""
    owner: str = ""
    doc: str = ""
    unit: str = ""

    def encode(self, value: Value) -> int:
        """Column value of a spelled value.

        Raises:
            ValueError: With a sentence that names the legal values.
        """
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"{value!r} is none of {', '.join(self.choices)}")
            return self.choices.index(str(value))
        if self.boolean:
            if not isinstance(value, bool):
                raise ValueError(f"{value!r} is neither true nor false")
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{value!r} is no whole number")
        return value

    def decode(self, code: int) -> Value:
        """Spelled value of a column value."""
        if self.choices:
            return self.choices[code]
        return bool(code) if self.boolean else int(code)


@frozen(kw_only=True)
class Dimension:
    """A way to split the devices, claimed by one plugin.

    Attributes:
        name: ``"tp"``; also the key of its degrees in the search section and in the rank order.
        degree: Its degree field.
        splits_batch: Its ranks work on different sequences of the global batch.
        replicates: What all its ranks hold alike: ``"parameters"`` for the dimensions over which
            gradients are summed and states may be sharded.
        splits_layers: Its ranks hold different layers (the pipeline).
    """

    name: str
    degree: Field
    splits_batch: bool = False
    replicates: tuple[str, ...] = ()
    splits_layers: bool = False
