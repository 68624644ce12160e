"""The compiled kernels of this room; the ``.cpp`` files beside this one say what each does and means."""

import ctypes

from tidegrid.native import FLAG, FLAGS, FLOAT, FLOATS, FLOATS_OUT, INT, INTS, function


class ShiftRules(ctypes.Structure):
    """Thresholds of a level shift, as ``tidegrid.estimators.realtime.shifts`` names them."""

    _fields_ = (
        ("least_before", INT),
        ("least_after", INT),
        ("look_back", INT),
        ("least_change", FLOAT),
        ("steadiness", FLOAT),
        ("held", FLOAT),
    )


# Members take the series, the ascending origins, their own settings, and the rows of forecasts that they fill.
seasonal_repeat = function("tg_seasonal_repeat", FLOATS, INTS, INT, FLOATS_OUT)
seasonal_curve = function("tg_seasonal_curve", FLOATS, INTS, INT, INT, INT, FLOATS_OUT)
analogues = function("tg_analogues", FLOATS, INTS, INT, INT, INT, FLOATS_OUT)
level = function("tg_level", FLOATS, INTS, FLOATS_OUT)
holt_winters_fit = function("tg_holt_winters_fit", FLOATS, INT, INT, FLAG, FLOATS_OUT)
holt_winters = function("tg_holt_winters", FLOATS, INTS, FLOATS, FLAG, FLOATS_OUT)
autoregression = function(
    "tg_autoregression", FLOATS, INT, INTS, FLOAT, INT, INTS, INTS, FLOAT, FLOAT, FLOATS_OUT, FLOATS_OUT
)

clearest_shift = function("tg_clearest_shift", FLOATS, ctypes.POINTER(ShiftRules), FLOATS_OUT, returns=INT)
off_weekday = function("tg_off_weekday", FLOATS, INT, FLOATS_OUT)


class JudgeRules(ctypes.Structure):
    """How members are weighed for the next hours, as ``tidegrid.estimators.realtime.nexthours`` names it."""

    _fields_ = (
        ("slow_half_life", FLOAT),
        ("fast_half_life", FLOAT),
        ("fast_share", FLOAT),
        ("sharpness", FLOAT),
        ("all_leads_share", FLOAT),
        ("surprise_from", FLOAT),
        ("surprise_to", FLOAT),
    )


next_hours = function(
    "tg_next_hours",
    FLOATS,
    FLAGS,
    INT,
    FLOATS,
    FLOATS,
    INT,
    INT,
    ctypes.POINTER(JudgeRules),
    FLOATS_OUT,
    FLOATS_OUT,
)
