"""The code that the experiment files beside it name; only its names matter."""


class Trial: ...


class DigitsTrial: ...
