# One study, from raw data to reports/{study}.html. The files in config/studies/ say what each study needs.
from snakemake.utils import min_version

min_version("9.8")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/control.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/predict.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        [PATHS.page(name) for name in PLANS],
        INDEX,
        GONE,


onstart:
    if not workflow.local_exec:
        with errors_end_the_call():
            calls.require_plain(sys.executable)
    lift_default_limit(workflow)
    if str(config["fork_server"]).lower() == "true" and workflow.local_exec and int(config["processes"]) == 1:
        fork_server.start()
    print(f"To follow the runs, in another terminal: {FOLLOW}", file=sys.stderr)


onerror:
    say_last(log)
