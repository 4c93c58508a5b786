"""The engine's scheduler without aggregates, to compare with."""


def naive_run(requests, timer, knobs, config):
    """The same scheduler written without aggregates: every sequence, every block, every step."""
    size, capacity = config.block_tokens, knobs.kv_capacity_tokens // config.block_tokens
    order = {True: lambda r: (r.priority, r.arrival_s, r.id), False: lambda r: (r.arrival_s, r.id)}
    order = order[knobs.priority_routing]
    upcoming = sorted(requests, key=lambda r: (r.arrival_s, r.id))
    waiting, running = [], []  # running: dicts in admission order
    made = {r.id: 0 for r in requests}
    first, finish, now = {}, {}, 0.0

    def used():
        return sum(sequence["blocks"] for sequence in running)

    while upcoming or waiting or running:
        while upcoming and upcoming[0].arrival_s <= now:
            waiting.append(upcoming.pop(0))
        waiting.sort(key=order)
        parts, preempted, room, i = [], False, config.token_budget, 0
        while i < len(running) and room > 0:
            sequence = running[i]
            chunk = min(room, sequence["target"] - sequence["done"])
            needed = -(-(sequence["done"] + chunk) // size)
            while sequence in running and used() - sequence["blocks"] + needed > capacity:
                victim = running[-1]
                if knobs.priority_routing:
                    victim = max(running, key=lambda s: order(s["request"]))
                i -= running.index(victim) < i
                room += sum(part for served, part in parts if served is victim)
                parts = [part for part in parts if part[0] is not victim]
                running.remove(victim)
                waiting.append(victim["request"])
                preempted = True
            if sequence not in running:
                break
            sequence["blocks"] = needed
            parts.append((sequence, chunk))
            room -= chunk
            i += 1
        waiting.sort(key=order)
        while waiting and not preempted and room > 0 and len(running) < knobs.batch_cap:
            request = waiting[0]
            target = request.prompt_tokens + made[request.id]
            if -(-target // size) > capacity:
                waiting.pop(0)
                continue
            if used() + -(-target // size) > capacity:
                break
            waiting.pop(0)
            chunk = min(room, target)
            running.append(
                {"request": request, "target": target, "done": 0, "blocks": -(-chunk // size)}
            )
            parts.append((running[-1], chunk))
            room -= chunk
        if not parts:
            if preempted:
                continue
            if not upcoming:
                break
            now = upcoming[0].arrival_s
            continue
        decoding = [sequence for sequence, _ in parts if sequence.get("decodes")]
        now += timer.iteration_s(
            decode_seqs=len(decoding),
            kv_tokens=sum(sequence["target"] for sequence in decoding),
            chunks=tuple((c, s["done"]) for s, c in parts if not s.get("decodes")),
        )
        for sequence, chunk in parts:
            sequence["done"] += chunk
            if sequence["done"] < sequence["target"]:
                continue
            # A token is sampled; its KV is what the next step computes.
            request = sequence["request"]
            sequence |= {"target": sequence["target"] + 1, "decodes": True}
            made[request.id] += 1
            first.setdefault(request.id, now)
            if made[request.id] == request.output_tokens:
                finish[request.id] = now
                running.remove(sequence)
    return first, finish
