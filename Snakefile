# One study, from raw data to reports/{study}.html. The files in config/studies/ say what each study needs.
# An installation has this file, too: see fedshift.io.shipped.
from pathlib import Path

from snakemake.logging import logger
from snakemake.utils import min_version

min_version("9.8")


# A workflow that imports this one as a module has a config/config.yaml of its own, and passes the settings itself.
if workflow.modifier.is_main_snakefile() and Path("config/config.yaml").exists():

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


report: "workflow/report/workflow.rst"


# The first rule is what a call builds by default, also where this workflow is a module of another one.
rule all:
    input:
        [PATHS.page(name) for name in PLANS],
        INDEX,
        GONE,


include: "workflow/rules/data.smk"
include: "workflow/rules/control.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/predict.smk"
include: "workflow/rules/report.smk"


onstart:
    if not workflow.local_exec:
        with errors_end_the_call():
            calls.require_plain(sys.executable)
    lift_default_limit(workflow)
    if str(config["fork_server"]).lower() == "true" and workflow.local_exec and int(config["processes"]) == 1:
        trained = [job.wildcards.run for job in workflow.dag.needrun_jobs() if job.rule.name.endswith("train")]
        fork_server.start(CALL.slow_libraries(trained))
    # By the log, whose thread writes a line in two parts: a print from here could come between them.
    logger.info(f"To follow the runs, in another terminal: {FOLLOW}")


onsuccess:
    say_pages(sorted(Path(job.output.page) for job in workflow.dag.jobs if job.rule.name == "report"), INDEX)


onerror:
    say_last(log)
