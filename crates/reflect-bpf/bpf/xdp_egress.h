/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second half of the `xdp` plane: what is done with clones as they are sent, and with those that a device did not take.
 *
 * A queue of up to sixteen frames goes through three steps, on one processor, with nothing in between: the egress program sees
 * each frame and logs what it does with it; the device takes some from the front; the program at the tracepoint compares.
 */
#ifndef REFLECT_XDP_EGRESS_H
#define REFLECT_XDP_EGRESS_H

#include "xdp_input.h"

/* Keeps in mind what was done with a clone until its queue has been sent. */
static __always_inline void note(struct bulk *bulk, __u32 slot, __u32 what, __u32 place)
{
	__u32 at = bulk->logged;

	if (at >= BULK)
		return;
	if (what != LOG_PASSED || (at && bulk->log[0].slot != slot))
		bulk->odd = 1;
	*(__u64 *)&bulk->log[at] = ((union entry_word){.entry = {.slot = slot, .what = what, .place = place}}).word;
	bulk->logged = at + 1;
}

/* A clone that is not for anybody. The kernel tells a driver to look at its queue only with the last frames for it: were all
 * of those dropped here, those before would lie there until something else comes. So the last clone becomes a frame that
 * nobody takes, from the device to itself, unless a copy is in the same queue. */
static __always_inline int leave(struct xdp_md *ctx, struct bulk *bulk, struct input *input, __u32 slot, __u32 clone)
{
	if (clone + 1 != input->clones || bulk->passed || input->flags & INPUT_QUIET)
		return XDP_DROP;

	struct frame4 *packet = FRAME(struct frame4, ctx);

	if (!packet)
		return XDP_DROP;
	__builtin_memcpy(packet->ethernet.h_dest, packet->ethernet.h_source, 6);
	packet->ethernet.h_proto = bpf_htons(REFLECT_XDP_BELL);
	__builtin_memset(&packet->ip, 0, sizeof(*packet) - sizeof(packet->ethernet));
	bpf_xdp_adjust_tail(ctx, (int)sizeof(*packet) - (int)(ctx->data_end - ctx->data));
	bulk->passed++;
	note(bulk, slot, LOG_BELL, 0);
	return XDP_PASS;
}

/* The next place that is somebody's who gets a copy; none if there is no more. */
static __always_inline struct place *next_place(struct input *input)
{
	__u32 end = input->end;

	for (__u32 tries = 0; tries < REFLECT_XDP_PLACES_MAX; tries++) {
		__u32 at = input->cursor;

		if (at >= end)
			return 0;

		struct place *place = bpf_map_lookup_elem(&places, &at);

		if (!place)
			return 0;
		input->cursor = at + 1;
		if (!(READ_ONCE(place->hop) >> 48 & REFLECT_PLACE_LIVE))
			continue;
		if (place->port != input->except_port || input->flags & INPUT_NO_EXCEPT ||
		    ((__u64 *)place->address)[0] != ((__u64 *)input->except)[0] ||
		    ((__u64 *)place->address)[1] != ((__u64 *)input->except)[1])
			return place;
	}
	return 0;
}

/* The sum of three 16-bit words at most, as it stands in a header. */
static __always_inline __u16 complement(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

SEC("xdp/devmap")
int reflect_xdp_egress(struct xdp_md *ctx)
{
	struct frame4 *packet = FRAME(struct frame4, ctx);
	struct bulk *bulk = this_bulk();

	if (!packet || !bulk)
		return XDP_DROP;

	__u32 number = *(__u32 *)packet->ethernet.h_dest;
	__u32 slot = number % REFLECT_XDP_INPUTS;
	struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

	if (!input || input->number != number || *(__u16 *)(packet->ethernet.h_dest + 4) != (__u16)~number)
		return XDP_DROP;

	__u32 clone = input->seen++;
	__u32 flags = input->flags;

	if (flags & INPUT_JOB) {
		__u32 zero = 0;
		struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

		if (outcome)
			outcome->seen = input->seen;
	}
	if (flags & INPUT_REFUSED || clone - input->first >= input->copies)
		return leave(ctx, bulk, input, slot, clone);

	struct place *place = next_place(input);

	if (!place)
		return leave(ctx, bulk, input, slot, clone);
	if (!(flags & INPUT_JOB)) {
		struct group *group = bpf_map_lookup_elem(&groups, &input->group);

		if (!group)
			return XDP_DROP;
		/* Something of the group waits in user space, and this would overtake it. */
		if (READ_ONCE(group->handed) != READ_ONCE(group->finished)) {
			struct counters *count = counters();

			if (!count)
				return XDP_DROP;
			input->flags = flags | INPUT_REFUSED | INPUT_COUNTED;
			hand_over(group, count);
			note(bulk, slot, LOG_REFUSED, input->cursor - 1);
			return leave(ctx, bulk, input, slot, clone);
		}
	}

	__u64 hop = READ_ONCE(place->hop);
	__be16 port = place->port;
	__u16 address_sum = place->sum;
	__u16 check = complement(input->sum + address_sum + port);

	if (!check)
		check = 0xffff;
	*(__u32 *)packet->ethernet.h_dest = hop;
	*(__u16 *)(packet->ethernet.h_dest + 4) = hop >> 32;
	if (flags & INPUT_IPV6) {
		struct frame6 *packet6 = FRAME(struct frame6, ctx);

		if (!packet6)
			return XDP_DROP;
		__builtin_memcpy(&packet6->ip.daddr, place->address, 16);
		packet6->udp.dest = port;
		packet6->udp.check = check;
	} else {
		packet->ip.daddr = *(__be32 *)(place->address + 12);
		packet->ip.check = complement(input->ip_sum + address_sum);
		packet->udp.dest = port;
		packet->udp.check = check;
	}
	bulk->passed++;
	note(bulk, slot, LOG_PASSED, input->cursor - 1);
	return XDP_PASS;
}

/* Counts copies of an input that a device took. */
static __always_inline void took(struct input *input, struct counters *count, __u32 copies)
{
	__u32 zero = 0;

	if (input->flags & INPUT_JOB) {
		struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

		if (outcome)
			outcome->copies += copies;
		return;
	}

	struct group *group = bpf_map_lookup_elem(&groups, &input->group);

	count->copies += copies;
	count->driver_copies += copies;
	if (group)
		__sync_fetch_and_add(&group->copies, copies);
}

/* Tells a job that its bell was taken. */
static __always_inline void bell_rang(void)
{
	__u32 zero = 0;
	struct xdp_outcome *outcome = bpf_map_lookup_elem(&xdp_outcomes, &zero);

	if (outcome)
		outcome->bells++;
}

/* A queue was given to a device, which took the first `sent` of what the egress program let through. */
SEC("tp_btf/xdp_devmap_xmit")
int reflect_xdp_sent(__u64 *arguments)
{
	int sent = arguments[2];
	struct bulk *bulk = this_bulk();
	struct counters *count = counters();

	if (!bulk || !count || !bulk->logged)
		return 0;

	__u32 logged = bulk->logged, passed = bulk->passed, odd = bulk->odd;

	bulk->logged = bulk->passed = bulk->odd = 0;
	if (sent < 0)
		sent = 0;
	if (!odd && passed == (__u32)sent) {
		__u32 slot = bulk->log[0].slot;
		struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

		if (input)
			took(input, count, passed);
		return 0;
	}

	__u32 before = 0;

	for (__u32 at = 0; at < BULK; at++) {
		if (at >= logged)
			break;

		struct entry entry = bulk->log[at];
		__u32 slot = entry.slot;
		struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

		if (!input)
			continue;
		if (entry.what != LOG_REFUSED && before++ < (__u32)sent) {
			if (entry.what == LOG_PASSED)
				took(input, count, 1);
			else if (input->flags & INPUT_JOB)
				bell_rang();
			continue;
		}
		if (entry.what == LOG_BELL || input->told)
			continue;

		struct group *group = bpf_map_lookup_elem(&groups, &input->group);

		if (!group)
			continue;
		input->stop = entry.place - (__u32)input->region;
		tell(input, group, count);
	}
	return 0;
}

/* The kernel could not broadcast the last input of this processor to the end: it had no memory for a clone. Clones that wait
 * in a queue are refused by the egress program, as those that it has not seen go to user space now. */
SEC("tp_btf/xdp_redirect_err")
int reflect_xdp_failed(__u64 *arguments)
{
	(void)arguments;
	struct bulk *bulk = this_bulk();
	struct counters *count = counters();

	if (!bulk || !count)
		return 0;

	__u32 slot = (bulk->next - 1) % REFLECT_XDP_INPUTS;
	struct input *input = bpf_map_lookup_elem(&xdp_inputs, &slot);

	if (!input || input->told || input->seen >= input->clones || !input->clones)
		return 0;

	struct group *group = bpf_map_lookup_elem(&groups, &input->group);

	if (!group)
		return 0;
	input->stop = input->cursor - (__u32)input->region;
	tell(input, group, count);
	return 0;
}

#endif
