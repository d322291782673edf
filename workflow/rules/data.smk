# On a cluster, these rules run where the workflow was started: one needs the network, the other takes seconds.
localrules:
    download,
    partition,


rule download:
    output:
        PATHS.source("{raw}"),
    log:
        PATHS.log("download", "{raw}"),
    conda:
        "../../envs/data.yaml"
    params:
        study=asked,
        code=lambda w: ACCEPTED.stamp("download", w.raw, accept.download_code(CALL.raw[w.raw])),
        mirror=mirror,
    shell:
        "python -m fedshift download {params.study} {params.mirror} {wildcards.raw} > {log:q} 2>&1"


rule prepare:
    input:
        source=lambda w: PATHS.source(CALL.data[w.data].raw),
    output:
        images=PATHS.data_files("{data}").images,
        samples=PATHS.data_files("{data}").samples,
        pixels=PATHS.data_files("{data}").pixels,
        card=PATHS.data_files("{data}").card,
    log:
        PATHS.log("prepare", "{data}"),
    conda:
        "../../envs/data.yaml"
    threads: 8
    params:
        study=asked,
        code=lambda w: ACCEPTED.stamp("prepare", w.data, accept.prepare_code(CALL.data[w.data])),
        images=lambda w: CALL.data[w.data].dataset.fingerprint(memory(PATHS.data(w.data))),
    shell:
        "python -m fedshift prepare {params.study} {wildcards.data} --threads {threads} > {log:q} 2>&1"


rule partition:
    input:
        data=lambda w: prepared(CALL.partitions[w.partition].data),
    output:
        PATHS.partition("{partition}"),
    log:
        PATHS.log("partition", "{partition}"),
    conda:
        "../../envs/data.yaml"
    params:
        study=asked,
        code=lambda w: ACCEPTED.stamp("partition", w.partition, accept.partition_code()),
    shell:
        "python -m fedshift partition {params.study} {wildcards.partition} > {log:q} 2>&1"
