"""An agent in another language: a creds file, a URL and wire.md, nothing else.

    python3 peer.py URL CREDS CHANNEL

It speaks through nats-py alone and in the calls that nats-py makes by itself. One JSON object per
step goes to stdout; whoever started it answers the step `ready` by posting one message on CHANNEL.
"""

import asyncio
import base64
import json
import secrets
import sys
import time

import nats
from nats.js import api

PATIENCE = 20


def say(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


class Identity:
    """What the credential says about its holder (wire.md section 1)."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            jwt = file.read().split("-----BEGIN NATS USER JWT-----")[1].split("---")[0].strip()
        body = jwt.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        tags = dict(tag.split(":", 1) for tag in claims["nats"]["tags"])
        self.conn = claims["sub"]
        self.principal = tags["principal"]
        self.space = tags["space"]
        self.dashed = f"{tags['owner']}-{tags['actor']}-{tags['lifecycle']}"
        self.prefix = f"cotal.{self.space}"


class Peer:
    def __init__(self, me, nc, denials):
        self.me, self.nc, self.js, self.denials = me, nc, nc.jetstream(), denials

    async def control(self, op, **args):
        subject = f"{self.me.prefix}.ctl.delivery.{self.me.principal}"
        reply = f"{subject}.reply.{secrets.token_hex(16)}"
        sub = await self.nc.subscribe(reply, max_msgs=1)
        sender = {"id": self.me.principal, "name": "pia"}
        request = {"op": op, "args": args, "from": sender}
        await self.nc.publish(subject, json.dumps(request).encode(), reply=reply)
        answer = json.loads((await sub.next_msg(timeout=PATIENCE)).data)
        assert answer["ok"], answer
        return answer["data"]

    async def post(self, channel, text):
        identity = secrets.token_hex(16)
        message = {
            "id": identity, "ts": int(time.time() * 1000), "space": self.me.space,
            "from": {"id": self.me.principal, "name": "pia"}, "channel": channel, "mentions": [],
            "parts": [{"kind": "text", "text": text}],
        }
        subject = f"{self.me.prefix}.chat.{self.me.principal}.{channel}"
        headers = {"Nats-Msg-Id": identity}
        ack = await self.js.publish(subject, json.dumps(message).encode(), headers=headers)
        assert not ack.duplicate and ack.stream == f"CHAT_{self.me.space}", ack
        return ack.seq

    async def be_present(self):
        presence = await self.js.key_value(f"cotal_presence_{self.me.space}")
        card = {"id": self.me.principal, "name": "pia", "kind": "agent"}
        row = {"card": card, "status": "idle", "ts": int(time.time() * 1000)}
        watch = await presence.watchall()
        await presence.put(self.me.principal, json.dumps(row).encode())
        while True:
            entry = await watch.updates(timeout=PATIENCE)
            if entry is not None and entry.key == self.me.principal:
                await watch.stop()
                return json.loads(entry.value)["card"]["name"]

    async def channels(self):
        channels = await self.js.key_value(f"cotal_channels_{self.me.space}")
        watch = await channels.watchall()
        found = {}
        while (entry := await watch.updates(timeout=PATIENCE)) is not None:
            found[entry.key] = json.loads(entry.value)
        await watch.stop()
        assert json.loads((await channels.get("=defaults")).value) == found["=defaults"]
        return found

    async def lease(self):
        stream = f"KV_cotal_delivery_{self.me.space}"
        subject = f"$KV.cotal_delivery_{self.me.space}.lease.0"
        return json.loads((await self.js.get_last_msg(stream, subject)).data)

    async def one_delivery(self):
        stream, consumer = f"DLV_{self.me.space}", f"dlv_{self.me.dashed}"
        sub = await self.js.pull_subscribe_bind(consumer=consumer, stream=stream)
        info = await sub.consumer_info()
        assert info.config.max_deliver == -1, info
        say("ready")
        [first] = await sub.fetch(1, timeout=PATIENCE)
        await first.in_progress()
        await first.nak()
        [again] = await sub.fetch(1, timeout=PATIENCE)
        assert again.metadata.num_delivered == 2, again.metadata
        await again.ack_sync(timeout=PATIENCE)
        await sub.unsubscribe()
        return json.loads(again.data), int(again.headers["Cotal-Seq"])

    async def history(self, channel):
        stream, name = f"CHAT_{self.me.space}", f"chathist_{self.me.dashed}"
        config = api.ConsumerConfig(
            name=name, filter_subject=f"{self.me.prefix}.chat.*.*.{channel}",
            ack_policy=api.AckPolicy.NONE, inactive_threshold=30, mem_storage=True,
        )
        await self.js.add_consumer(stream, config=config)
        sub = await self.js.pull_subscribe_bind(name=name, stream=stream)
        messages = await sub.fetch(100, timeout=2)
        await sub.unsubscribe()
        await self.js.delete_consumer(stream, name)
        return [json.loads(message.data)["parts"][0]["text"] for message in messages]

    async def forge(self, channel):
        forged = f"{self.me.prefix}.chat.local.somebody_else.{channel}"
        await self.nc.publish(forged, b"{}")
        return await asyncio.wait_for(self.denials.get(), PATIENCE)


async def main(url, creds, channel):
    me, denials = Identity(creds), asyncio.Queue()

    async def on_error(error):
        await denials.put(str(error))

    nc = await nats.connect(
        url, user_credentials=creds, inbox_prefix=f"_INBOX_{me.conn}".encode(), error_cb=on_error
    )
    peer = Peer(me, nc, denials)
    say("present", name=await peer.be_present())
    say("channels", found=await peer.channels())
    say("lease", ready=(await peer.lease())["ready"])
    live = await nc.subscribe(f"{me.prefix}.chat.*.*.{channel}")
    joined = await peer.control("durableJoin", channel=channel)
    say("joined", **joined)
    say("posted", seq=await peer.post(channel, "from python"))
    heard = await live.next_msg(timeout=PATIENCE)
    say("heard", subject=heard.subject)
    message, seq = await peer.one_delivery()
    say("delivered", id=message["id"], sender=message["from"]["id"], seq=seq)
    say("history", texts=await peer.history(channel))
    left = await peer.control("durableLeave", channel=channel, generation=joined["generation"])
    say("left", **left)
    assert denials.empty(), denials
    say("denied", error=await peer.forge(channel))
    await nc.drain()


asyncio.run(main(*sys.argv[1:]))
