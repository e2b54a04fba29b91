"""Code that the experiment files name; only its names are used."""


class Trial: ...


class DigitsTrial: ...
