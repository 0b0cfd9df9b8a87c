"""One SGLang engine that does what it is told: JSON lines in on stdin, JSON lines out on a pipe.

    worker.py <file descriptor of the pipe> <engine arguments as JSON>
"""

import json
import os
import sys
import time
import traceback

import engine_patches

# SGLang's own processes import this module again before they load a model.
engine_patches.install()


def generate(engine, ids, new_tokens, top=20) -> dict:
    begun = time.perf_counter()
    answer = engine.generate(
        input_ids=ids,
        sampling_params={
            "temperature": 0,
            "max_new_tokens": new_tokens,
            "ignore_eos": True,
        },
        return_logprob=new_tokens > 1,
        **({"top_logprobs_num": top} if new_tokens > 1 else {}),
    )
    seconds = time.perf_counter() - begun
    meta = answer["meta_info"]
    first = (meta.get("output_top_logprobs") or [[]])[0]
    return {
        "seconds": seconds,
        "cached": meta.get("cached_tokens"),
        "details": meta.get("cached_tokens_details"),
        "ids": answer["output_ids"],
        "logprobs": [row[0] for row in meta.get("output_token_logprobs") or []],
        "first": {str(row[1]): row[0] for row in first},
    }


def flush(engine, tries=20) -> dict:
    """Forget device and host; refused while requests or write-backs are on their way."""
    for count in range(tries):
        result = engine.flush_cache()
        if getattr(result, "success", False):
            return {"flushed": True, "tries": count + 1}
        time.sleep(0.3)
    return {"flushed": False, "tries": tries}


def serve(pipe, arguments: dict) -> None:
    import sglang

    begun = time.perf_counter()
    engine = sglang.Engine(**arguments)
    started = time.perf_counter() - begun
    say(pipe, up=True, version=sglang.__version__, seconds=started)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "generate":
            say(pipe, **generate(engine, order["ids"], order["new_tokens"]))
        elif order["do"] == "flush":
            say(pipe, **flush(engine))
        else:
            break
    engine.shutdown()


def say(pipe, **row) -> None:
    pipe.write(json.dumps(row) + "\n")
    pipe.flush()


def main() -> None:
    pipe = os.fdopen(int(sys.argv[1]), "w")
    try:
        serve(pipe, json.loads(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        say(pipe, error=traceback.format_exc()[-1500:])
        os._exit(1)


if __name__ == "__main__":
    main()
