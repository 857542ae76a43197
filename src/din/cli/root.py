"""`din`: the groups and commands by name. Imports none of them."""

from __future__ import annotations

import click

from din.cli.frame import LazyGroup, RootGroup, verbosity_options
from din.version import __version__

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Root(RootGroup):
    """`din` with its examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first five minutes."""
        with formatter.section("Start here"):
            formatter.write("  din up                                   gateway and a node here\n")
            formatter.write("  din model register model.onnx            give it a model\n")
            formatter.write("  din infer model --input photo.jpg        ask it\n")
            formatter.write("  din trace show last                      see who did what\n")


cli = _Root(
    name="din",
    help="One inference service out of unlike machines.",
    context_settings=SETTINGS,
    no_args_is_help=True,
    params=verbosity_options(),
    lazy={
        "up": ("din.cli.up:up", "Start a gateway and a node on this machine."),
        "down": ("din.cli.up:down", "Stop what `din up` started."),
        "gateway": ("din.cli.root:gateway", "Run a gateway in the foreground."),
        "node": ("din.cli.root:node", "Start, list and inspect nodes."),
        "token": ("din.cli.root:token", "Tokens by which other machines join."),
        "model": ("din.cli.root:model", "Register, list and inspect models."),
        "strategy": ("din.cli.root:strategy", "Check and explain slicing strategies."),
        "plan": ("din.cli.plan:plan", "Where a request would run, and why not elsewhere."),
        "infer": ("din.cli.infer:infer", "Run one request."),
        "key": ("din.cli.root:key", "Make, list and revoke API keys."),
        "audit": ("din.cli.root:audit", "See who changed what, and whether the log is whole."),
        "trace": ("din.cli.root:trace", "See which node did what in a request."),
        "service": ("din.cli.root:service", "Run gateway and node as services of systemd."),
        "doctor": ("din.cli.doctor:doctor", "Test this machine, its network and trust."),
        "bench": ("din.cli.root:bench", "Measure this machine with DIN on it."),
        "errors": ("din.cli.reference:errors", "What an error code means."),
        "config": ("din.cli.root:config", "Show and explain settings."),
        "completion": ("din.cli.reference:completion", "Print shell completion."),
    },
)
click.version_option(__version__, "-V", "--version", prog_name="din")(cli)

gateway = LazyGroup(
    name="gateway",
    help="Run a gateway.",
    no_args_is_help=True,
    lazy={"start": ("din.cli.start:start_gateway", "Run a gateway in the foreground.")},
)
node = LazyGroup(
    name="node",
    help="Start, list and inspect nodes.",
    no_args_is_help=True,
    lazy={
        "start": ("din.cli.start:start_node", "Run a node in the foreground."),
        "list": ("din.cli.node:list_nodes", "List nodes with their live state."),
        "join": ("din.cli.join:join_node", "Make this machine a node of a cluster, by a token."),
        "revoke": ("din.cli.join:revoke_node", "Throw a node out for good."),
        "inspect": ("din.cli.node:inspect_node", "Everything known of one node."),
        "heat": ("din.cli.node_heat:node_heat", "How hot the cores of one node run."),
        "watch": ("din.cli.node:watch_nodes", "List nodes again and again."),
        "drain": ("din.cli.node:drain_node", "Move the slices of a node away."),
        "label": ("din.cli.node:label_node", "Give a node labels, such as trust=high."),
        "undrain": ("din.cli.node:undrain_node", "Take a drain back."),
        "lift": ("din.cli.node:lift_node", "Load slices again that crashed on a node."),
        "stop": ("din.cli.start:stop_node", "Stop a node started with --detach."),
    },
)
token = LazyGroup(
    name="token",
    help="Tokens by which other machines join.",
    no_args_is_help=True,
    lazy={
        "create": ("din.cli.token:create_token", "Make a token for one machine."),
        "list": ("din.cli.token:list_tokens", "List tokens, without their secrets."),
        "revoke": ("din.cli.token:revoke_token", "Take a token back."),
    },
)
model = LazyGroup(
    name="model",
    help="Register, list and inspect models.",
    no_args_is_help=True,
    lazy={
        "register": ("din.cli.register:register", "Give DIN a model and wait until it is ready."),
        "list": ("din.cli.model:list_models", "List models with their state."),
        "inspect": ("din.cli.model:inspect_model", "Signature, slices and where they are."),
        "slices": ("din.cli.model:list_slices", "The slices of one model."),
        "slice": ("din.cli.cuts:slice_model", "Choose the cuts of an auto model again."),
        "graph": ("din.cli.graph:graph", "Draw the slices and what flows between them."),
        "profile": ("din.cli.examine:profile", "Time every operator, on nodes."),
        "verify": ("din.cli.examine:verify", "Compare the slices with the whole."),
        "remove": ("din.cli.model:remove_model", "Unload a model everywhere and forget it."),
    },
)
strategy = LazyGroup(
    name="strategy",
    help="Check and explain slicing strategies.",
    no_args_is_help=True,
    lazy={
        "check": ("din.cli.strategy:check", "Whether a file is right, with line and column."),
        "explain": ("din.cli.strategy:explain", "Which slices it makes, and who could take them."),
        "schema": ("din.cli.strategy:schema", "Print the JSON Schema of such files, for editors."),
    },
)
trace = LazyGroup(
    name="trace",
    help="See which node did what in a request.",
    no_args_is_help=True,
    lazy={
        "list": ("din.cli.trace:list_traces", "The newest requests."),
        "show": ("din.cli.trace:show_trace", "One request as a waterfall."),
    },
)
key = LazyGroup(
    name="key",
    help="Make, list and revoke API keys.",
    no_args_is_help=True,
    lazy={
        "create": ("din.cli.key:create_key", "Make an API key and print it, once."),
        "list": ("din.cli.key:list_keys", "All API keys, without their secrets."),
        "revoke": ("din.cli.key:revoke_key", "Take an API key away."),
    },
)
audit = LazyGroup(
    name="audit",
    help="See who changed what, and whether the log is whole.",
    no_args_is_help=True,
    lazy={
        "list": ("din.cli.audit:list_entries", "Changes and refusals, newest first."),
        "verify": ("din.cli.audit:verify", "Whether a line was edited or is missing."),
    },
)
bench = LazyGroup(
    name="bench",
    help="Measure this machine with DIN on it.",
    no_args_is_help=True,
    lazy={
        "list": ("din.cli.bench:list_benchmarks", "List what can be measured, by group."),
        "run": ("din.cli.bench:run_benchmarks", "Measure groups or single benchmarks."),
    },
)
service = LazyGroup(
    name="service",
    help="Run gateway and node as services of systemd.",
    no_args_is_help=True,
    lazy={
        "install": ("din.cli.service:install", "Make the units; nothing is started."),
        "status": ("din.cli.service:status", "How the units stand."),
        "remove": ("din.cli.service:remove", "Stop the services and take their units away."),
    },
)
config = LazyGroup(
    name="config",
    help="Show and explain settings.",
    no_args_is_help=True,
    lazy={
        "show": ("din.cli.settings:show_config", "Settings in force and where they come from."),
        "explain": ("din.cli.settings:explain_config", "What one key means and allows."),
    },
)
