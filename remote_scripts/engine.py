"""Starts, lists and stops engines; the only script that starts anything that outlives its call."""
import prelude

ACTIONS = {
    "start": ("engine_start", "start"),
    "list": ("engine_list", "listing"),
    "logs": ("engine_list", "logs"),
    "stop": ("engine_stop", "stop"),
    "outlive": ("engine_outlive", "begin"),
    "outlived": ("engine_outlive", "look"),
}


def main(args):
    if args.get("action") not in ACTIONS:
        prelude.fail("bad_argument", "no action %r" % (args.get("action"),))
    part, function = ACTIONS[args["action"]]
    return getattr(__import__(part), function)(args)  # only the part that is asked for is compiled


prelude.main(main)
