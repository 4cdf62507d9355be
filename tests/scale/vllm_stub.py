"""A vLLM server as far as TRL's client sees it: every endpoint it calls, with a small model that takes the weights it is sent.

What it is strict about: prompts are lists of token ids, weights come only between the start and the finish of an update and have
the names, types and shapes announced, nobody generates amid an update. Any breach is an HTTP 409, which fails the training.

What stands in for the real thing: tensors go through a queue of this process instead of NCCL, and completions come from the
package's own generator over the stub's model, with the log-probabilities of a server started with
``--logprobs-mode processed_logprobs``.
"""

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import torch

from memalpha.generation.hf import HFGenerator
from memalpha.types import Prompt, Sampling


class Breach(Exception):
    """The client did what the protocol does not allow."""


class StubModel:
    """A model that generates with the weights it was sent; ``stale`` takes them and ignores them: the planted fault."""

    def __init__(self, model, tokenizer, stale=False):
        self.model, self.stale = model.eval(), stale
        self.generator = HFGenerator(model, tokenizer, logprobs=True)
        self.draws = 0
        self.pushes = []

    def begin(self):
        self.pushes.append({})

    def take(self, name, tensor):
        own = dict(self.model.named_parameters())
        if name not in own:
            raise Breach(f"no parameter {name}")
        if own[name].shape != tensor.shape:
            raise Breach(f"{name} has shape {tuple(own[name].shape)}, not {tuple(tensor.shape)}")
        self.pushes[-1][name] = tensor.detach().clone()
        if not self.stale:
            own[name].data.copy_(tensor)

    def complete(self, prompts, max_tokens, temperature, top_p, top_k):
        self.draws += 1
        sampling = Sampling(max_tokens, temperature, top_p, top_k, seed=self.draws)
        return self.generator.generate([Prompt((), tuple(ids)) for ids in prompts], sampling)


class VLLMStub:
    """The server; ``requests`` holds (path, body) of every POST, in order."""

    def __init__(self, model, tokenizer, stale=False):
        self.served = StubModel(model, tokenizer, stale)
        self.wire = queue.Queue()
        self.requests, self.group, self.updating, self.resets = [], None, False, 0
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def completions(self):
        """Bodies of all requests for completions, in order."""
        return [body for path, body in self.requests if path == "/v1/completions"]

    # ---------------------------------------------------------------------------------------- endpoints
    def get(self, path):
        return {
            "/health": {},
            "/v1/models": {"data": [{"id": "policy"}]},
            "/server_info": {
                "vllm_config": {
                    "weight_transfer_config": {"backend": "nccl"},
                    "model_config": {"logprobs_mode": "processed_logprobs"},
                }
            },
            "/get_world_size": {"world_size": 1},
        }[path]

    def post(self, path, body):
        self.requests.append((path, body))
        answers = {
            "/init_weight_transfer_engine": self.init_weight_transfer_engine,
            "/start_weight_update": self.start_weight_update,
            "/update_weights": self.update_weights,
            "/finish_weight_update": self.finish_weight_update,
            "/reset_prefix_cache": self.reset_prefix_cache,
            "/v1/completions": self.complete,
        }
        return answers[path](body)

    def init_weight_transfer_engine(self, body):
        self.group = body["init_info"]
        return {}

    def start_weight_update(self, body):
        self.expect(self.group is not None and not self.updating, "an update before the group, or inside another")
        self.updating = True
        self.served.begin()
        return {}

    def update_weights(self, body):
        self.expect(self.updating, "weights outside an update")
        info = body["update_info"]
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            sent_name, tensor = self.wire.get(timeout=10)
            found = (sent_name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            self.expect(found == (name, dtype, shape), f"{found} was sent, {(name, dtype, shape)} announced")
            self.served.take(name, tensor)
        return {}

    def finish_weight_update(self, body):
        self.expect(self.updating, "the end of an update that has not begun")
        self.updating = False
        return {}

    def reset_prefix_cache(self, body):
        self.resets += 1
        return {"success": True}

    def complete(self, body):
        prompts = body["prompt"]
        self.expect(not self.updating, "a completion amid an update")
        self.expect(all(isinstance(i, int) for ids in prompts for i in ids) and all(prompts), "prompts that are no token ids")
        self.expect(body["n"] == 1 and body["return_token_ids"], "other than one completion a prompt, as token ids")
        found = self.served.complete(prompts, body["max_tokens"], body["temperature"], body["top_p"], max(body["top_k"], 0))
        return {"choices": [_choice(prompt, made) for prompt, made in zip(prompts, found, strict=True)]}

    def expect(self, holds, what):
        if not holds:
            raise Breach(what)


def _choice(prompt, made):
    tokens = [f"token_id:{token}" for token in made.ids]
    top = [{token: logprob} for token, logprob in zip(tokens, made.logprobs, strict=True)]
    logprobs = {"tokens": tokens, "token_logprobs": list(made.logprobs), "top_logprobs": top}
    return {"prompt_token_ids": prompt, "token_ids": list(made.ids), "logprobs": logprobs}


def _handler(stub):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply(200, stub.get(self.path.split("?")[0]))

        def do_POST(self):
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                with stub.lock:
                    self.reply(200, stub.post(self.path, json.loads(raw or b"{}")))
            except Breach as breach:
                self.reply(409, {"error": str(breach)})

        def reply(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


# -------------------------------------------------------------------------------------------- what TRL imports from vLLM
def install(patch, wire, stateful=True):
    """Give TRL what it imports from vLLM: the sending side of the wire. ``patch(owner, name, value)`` sets an attribute.

    Args:
        patch: Such as pytest's ``monkeypatch.setattr``.
        wire: The queue that stands in for NCCL.
        stateful: As vLLM from 0.28 on, else as before.
    """
    from trl.generation import vllm_client, vllm_generation

    def send(iterator):
        for name, tensor in iterator:
            wire.put((name, tensor.detach().clone()))

    for module in (vllm_client, vllm_generation):
        patch(module, "is_vllm_available", lambda *_, **__: True)
    endpoint = SimpleNamespace(group=SimpleNamespace(store=None, socket=None))
    static = SimpleNamespace(trainer_init=lambda info: endpoint, trainer_send_weights=lambda iterator, trainer_args: send(iterator))
    for name, value in {
        "_HAS_STATEFUL_TRAINER_ENGINE": stateful,
        "_HAS_RESET_PREFIX_CACHE_SUCCESS": True,
        "get_ip": lambda: "127.0.0.1",
        "open_trainer_endpoint": lambda info: endpoint,
        "packed_nccl_broadcast_producer": lambda iterator, group, src, post_iter_func: send(iterator),
        "NCCLWeightTransferEngine": static,
        "NCCLTrainerSendWeightsArgs": lambda group, packed: None,
    }.items():
        patch(vllm_client, name, value)
    join = vllm_client.VLLMClient.init_communicator
    patch(vllm_client.VLLMClient, "init_communicator", lambda self, device: join(self, torch.device("cuda")))  # it asks for CUDA


class StubLLM:
    """vLLM's engine inside the training process, as far as TRL's colocate mode uses it."""

    def __init__(self, served, **options):
        self.served, self.options, self.calls, self.resets = served, options, [], 0
        loading = SimpleNamespace(load_weights=self.load_weights)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=loading))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, pairs):
        for name, tensor in pairs:
            if not self.served.pushes or name in self.served.pushes[-1]:
                self.served.begin()
            self.served.take(name, tensor)

    def reset_prefix_cache(self):
        self.resets += 1

    def generate(self, prompts, sampling_params, use_tqdm):
        self.calls.append((prompts, sampling_params))
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        wanted = sampling_params
        made = self.served.complete(ids, wanted["max_tokens"], wanted["temperature"], wanted["top_p"], wanted["top_k"])
        return [
            SimpleNamespace(
                prompt_token_ids=prompt,
                outputs=[
                    SimpleNamespace(
                        token_ids=list(one.ids),
                        logprobs=[
                            {token: SimpleNamespace(rank=1, logprob=value)}
                            for token, value in zip(one.ids, one.logprobs, strict=True)
                        ],
                    )
                ],
            )
            for prompt, one in zip(ids, made, strict=True)
        ]
