"""ClientApp that does what clients should not, as its messages say; every process can import it."""

import asyncio
import os
import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


class Wordless(Exception):
    """Exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@app.train()
def train(message: Message, context: Context) -> Message:
    config = dict(message.content.config_records["config"])
    requested = int(context.state.metric_records.get("asked", MetricRecord({"n": 0}))["n"]) + 1  # type: ignore[arg-type]
    context.state["asked"] = MetricRecord({"n": requested})
    time.sleep(float(config.get("seconds", 0.0)))  # type: ignore[arg-type]
    reply = ArrayRecord([np.zeros(3 if "megabytes" not in config else int(config["megabytes"]) * 125_000)])  # type: ignore
    match config.get("deed"):
        case "raises":
            raise ValueError("no")
        case "wordless":
            raise Wordless
        case "cancelled":
            raise asyncio.CancelledError("not awaited")
        case "bytearray":
            (array,) = reply.values()
            array.data = bytearray(array.data)  # type: ignore[assignment]
        case "nothing":
            return None  # type: ignore[return-value]
    sent = message.content.array_records.get("arrays")
    first = float(sent.to_numpy_ndarrays()[0][0]) if sent else -1.0
    metrics = {"asked": requested, "pid": os.getpid(), "first": first, "tag": int(config.get("tag", 0))}  # type: ignore[arg-type]
    return Message(RecordDict({"arrays": reply, "metrics": MetricRecord(metrics)}), reply_to=message)
