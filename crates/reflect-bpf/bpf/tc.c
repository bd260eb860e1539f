// SPDX-License-Identifier: Apache-2.0
/*
 * The `kernel` plane: copies datagrams at the traffic-control ingress hook.
 *
 * A datagram to one of the reflector's ports from a member is admitted or refused whole; then for each place of its group the
 * headers are written for the receiver and a clone of the packet goes to the receiver's device. When a device takes no more,
 * the payload goes to user space through a ring, with the place where it stopped, and the group's next datagrams are refused
 * until that one is finished. Everything that is not certainly such a datagram goes up untouched.
 *
 * A clone shares the packet's memory until the kernel gives the original another head, which bpf_clone_redirect sees to. So
 * headers are written before each clone, in place, and what is the same for a lane is written once for the lane.
 */
#include "shared.h"

#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>

/* Neither dropped nor taken: programs after this one, and the stack, see it. */
#define NEXT TC_ACT_UNSPEC

#define NET_XMIT_CN 2
#define ENOMEM 12

/* How the UDP checksum field of copies is made. */
enum checksum {
	NONE,     /* There is none (IPv4 only), and copies have none. */
	PARTIAL,  /* The device completes it: the field holds the sum of the pseudo-header. */
	COMPLETE, /* The field holds the whole checksum. */
};

/* A copy under way, for the callbacks. */
struct work {
	struct __sk_buff *skb;
	__u64 ip_sum;   /* IPv4: of the IP header without checksum and destination */
	__u64 udp_sum;  /* of all that the UDP checksum field is made of, without the destination's address and port */
	__u32 base;     /* the lane's first place */
	__u32 device;   /* the lane's; 0 if its copies can only be counted */
	__u32 checksum; /* enum checksum */
	__u32 summed;   /* The packet has a sum in its sk_buff, which is kept right. */
	__u32 headers;  /* the sum of the headers as they are, if `summed` */
	__u32 stop;     /* where the lane's device took no more */
	__u32 stopped;
	__u32 copies;
	__u32 undeliverable;
	__be16 except_port; /* the sender's place */
	__u16 spare;
	__u8 except[16];
	bool no_except;
};

/* An Ethernet header, in words that are written at once, and what comes after it. */
struct ethernet {
	__u32 to_first;
	__u16 to_last, from_first;
	__u32 from_last;
	__be16 protocol;
};

struct headers4 {
	struct iphdr ip;
	struct udphdr udp;
};

struct headers6 {
	struct ipv6hdr ip;
	struct udphdr udp;
};

/* The packet's headers, if they lie where a program can read and write them. */
#define HEADERS(type, skb)                                                                                                     \
	({                                                                                                                     \
		void *_data = (void *)(long)(skb)->data;                                                                       \
		_data + ETH_HLEN + sizeof(type) <= (void *)(long)(skb)->data_end ? (type *)(_data + ETH_HLEN) : 0;             \
	})

/* The Ethernet header before these. */
#define ETHERNET(headers) ((struct ethernet *)((void *)(headers)-ETH_HLEN))

static __always_inline void address_to(struct ethernet *ethernet, __u64 hop)
{
	ethernet->to_first = hop;
	ethernet->to_last = hop >> 32;
}

static __always_inline void address_from(struct ethernet *ethernet, const struct lane *lane)
{
	ethernet->from_first = *(const __u16 *)lane->mac;
	ethernet->from_last = *(const __u16 *)(lane->mac + 2) | (__u32) * (const __u16 *)(lane->mac + 4) << 16;
}

static __always_inline __u16 udp_check(const struct work *work, __u16 address_sum, __be16 port)
{
	__u16 check;

	if (work->checksum == NONE)
		return 0;
	if (work->checksum == PARTIAL)
		return fold(work->udp_sum + address_sum);
	check = ~fold(work->udp_sum + address_sum + port);
	return check ? check : 0xffff;
}

/* The sum of everything after the Ethernet header that this program writes. */
static __always_inline __u32 headers_sum4(const struct headers4 *packet)
{
	const __u32 *words = (const void *)&packet->ip;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < 7; i++)
		sum += words[i];
	return fold(sum);
}

static __always_inline __u32 headers_sum6(const struct headers6 *packet)
{
	const __u32 *words = (const void *)&packet->ip;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < 12; i++)
		sum += words[i];
	return fold(sum);
}

/* Keeps the sum that a device computed over the whole packet. */
static __always_inline void keep_sum(struct work *work, __u32 now)
{
	bpf_csum_update(work->skb, fold((__u64)now + (__u16)~work->headers));
	work->headers = now;
}

/* The packet is as the receiver gets it: sends a clone. Returns 1 to stop. */
static __always_inline long send(struct work *work, __u32 index)
{
	long result;

	result = bpf_clone_redirect(work->skb, work->device, 0);
	if (result == 0 || result == NET_XMIT_CN) {
		work->copies++;
		return 0;
	}
	/* A full queue says a positive number; a lack of memory passes, too. All else is for good. */
	if (result > 0 || result == -ENOMEM) {
		work->stop = index;
		work->stopped = 1;
		return 1;
	}
	work->undeliverable++;
	return 0;
}

static long copy4(__u32 index, void *context)
{
	struct work *work = context;
	__u32 at = work->base + index;
	struct place *place = bpf_map_lookup_elem(&places, &at);

	if (!place)
		return 1;

	__u64 hop = READ_ONCE(place->hop);
	__be32 address = *(__be32 *)(place->address + 12);
	__be16 port = place->port;

	if (!(hop >> 48 & REFLECT_PLACE_LIVE))
		return 0;
	if (port == work->except_port && address == *(__be32 *)(work->except + 12) && !work->no_except)
		return 0;
	if (!work->device) {
		work->undeliverable++;
		return 0;
	}

	struct headers4 *packet = HEADERS(struct headers4, work->skb);

	if (!packet) {
		work->undeliverable++;
		return 0;
	}
	address_to(ETHERNET(packet), hop);
	packet->ip.daddr = address;
	packet->ip.check = ~fold(work->ip_sum + place->sum);
	packet->udp.dest = port;
	packet->udp.check = udp_check(work, place->sum, port);
	if (work->summed)
		keep_sum(work, headers_sum4(packet));
	return send(work, index);
}

static long copy6(__u32 index, void *context)
{
	struct work *work = context;
	__u32 at = work->base + index;
	struct place *place = bpf_map_lookup_elem(&places, &at);

	if (!place)
		return 1;

	__u64 hop = READ_ONCE(place->hop);
	__be16 port = place->port;
	const __u64 *address = (const void *)place->address;
	const __u64 *except = (const void *)work->except;

	if (!(hop >> 48 & REFLECT_PLACE_LIVE))
		return 0;
	if (port == work->except_port && address[0] == except[0] && address[1] == except[1] && !work->no_except)
		return 0;
	if (!work->device) {
		work->undeliverable++;
		return 0;
	}

	struct headers6 *packet = HEADERS(struct headers6, work->skb);

	if (!packet) {
		work->undeliverable++;
		return 0;
	}
	address_to(ETHERNET(packet), hop);
	__builtin_memcpy(&packet->ip.daddr, address, 16);
	packet->udp.dest = port;
	packet->udp.check = udp_check(work, place->sum, port);
	if (work->summed)
		keep_sum(work, headers_sum6(packet));
	return send(work, index);
}

/* Tells a checksum field that a device still has to complete from one that is complete: the helper leaves the former alone
 * when addresses are not concerned. The field is as before afterwards. */
static __always_inline enum checksum checksum_kind(struct __sk_buff *skb, __u32 offset, __u16 check)
{
	__u16 now = check;

	if (bpf_l4_csum_replace(skb, offset, 0, 1, 2))
		return PARTIAL;
	bpf_skb_load_bytes(skb, offset, &now, 2);
	if (now == check)
		return PARTIAL;
	bpf_l4_csum_replace(skb, offset, 1, 0, 2);
	return COMPLETE;
}

/* What a packet's headers say, and the headers as they came. */
struct parsed {
	union {
		struct headers4 four;
		struct headers6 six;
	} saved;
	__u32 length;  /* of the IP packet */
	__u32 payload; /* of the datagram */
	struct sender_key key;
	__u8 local[16];
	__be16 local_port;
	__u16 check;
	__u8 tos; /* of copies */
};

/* A rescue with its payload, before it is put into the ring; one for each processor. */
struct rescue_room {
	struct rescue rescue;
	__u8 bytes[REFLECT_PAYLOAD_MAX + 1];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rescue_room);
	__uint(max_entries, 1);
} rescue_rooms SEC(".maps");

/* True if it is one whole UDP datagram without anything unusual about it. */
static __always_inline bool parse4(struct __sk_buff *skb, struct parsed *parsed)
{
	const struct headers4 *saved = &parsed->saved.four;
	const struct headers4 *packet = HEADERS(struct headers4, skb);

	if (!packet)
		return false;
	parsed->saved.four = *packet;
	parsed->length = bpf_ntohs(saved->ip.tot_len);

	__u32 udp = bpf_ntohs(saved->udp.len);

	if (saved->ip.version != 4 || saved->ip.ihl != 5 || saved->ip.protocol != IPPROTO_UDP ||
	    saved->ip.frag_off & bpf_htons(0x3fff) || udp < sizeof(saved->udp) ||
	    parsed->length != sizeof(saved->ip) + udp)
		return false;

	const __u32 *words = (const void *)&saved->ip;

	if (fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]) != 0xffff)
		return false;
	parsed->payload = udp - sizeof(saved->udp);
	parsed->check = saved->udp.check;
	parsed->tos = tos4(saved);
	parsed->local[10] = parsed->local[11] = 0xff;
	__builtin_memcpy(parsed->local + 12, &saved->ip.daddr, 4);
	parsed->local_port = saved->udp.dest;
	parsed->key.address[10] = parsed->key.address[11] = 0xff;
	__builtin_memcpy(parsed->key.address + 12, &saved->ip.saddr, 4);
	parsed->key.port = saved->udp.source;
	parsed->key.local_port = saved->udp.dest;
	return true;
}

static __always_inline bool is_mapped(const struct in6_addr *address)
{
	return !address->s6_addr32[0] && !address->s6_addr32[1] && address->s6_addr32[2] == bpf_htonl(0xffff);
}

static __always_inline bool parse6(struct __sk_buff *skb, struct parsed *parsed)
{
	const struct headers6 *saved = &parsed->saved.six;
	const struct headers6 *packet = HEADERS(struct headers6, skb);

	if (!packet)
		return false;
	parsed->saved.six = *packet;
	parsed->length = bpf_ntohs(saved->ip.payload_len) + sizeof(saved->ip);

	__u32 udp = bpf_ntohs(saved->udp.len);

	/* A datagram over IPv6 has a checksum. IPv4 addresses have no business in such a header. */
	if (saved->ip.version != 6 || saved->ip.nexthdr != IPPROTO_UDP || udp < sizeof(saved->udp) ||
	    parsed->length != sizeof(saved->ip) + udp || !saved->udp.check ||
	    is_mapped(&saved->ip.saddr) || is_mapped(&saved->ip.daddr))
		return false;
	parsed->payload = udp - sizeof(saved->udp);
	parsed->check = saved->udp.check;
	parsed->tos = tos6(saved);
	__builtin_memcpy(parsed->local, &saved->ip.daddr, 16);
	parsed->local_port = saved->udp.dest;
	__builtin_memcpy(parsed->key.address, &saved->ip.saddr, 16);
	parsed->key.port = saved->udp.source;
	parsed->key.local_port = saved->udp.dest;
	if ((saved->ip.saddr.s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		parsed->key.device = skb->ifindex;
	return true;
}

/* Writes what is the same for all copies of a lane, and sums it up. False if the headers cannot be written. */
static __always_inline bool begin4(struct work *work, const struct parsed *parsed, const struct lane *lane)
{
	const struct headers4 *saved = &parsed->saved.four;
	struct headers4 *packet = HEADERS(struct headers4, work->skb);

	if (!packet)
		return false;
	address_from(ETHERNET(packet), lane);
	packet->ip.ttl = REFLECT_TTL;
	packet->ip.tos = parsed->tos;
	packet->ip.frag_off = bpf_htons(0x4000);
	packet->ip.saddr = *(__be32 *)(lane->address + 12);
	packet->udp.source = lane->port;

	const __u32 *words = (const void *)&packet->ip;

	work->ip_sum = (__u64)words[0] + words[1] + (words[2] & bpf_htonl(0xffff0000)) + words[3];
	if (work->checksum == PARTIAL)
		work->udp_sum = (__u64)lane->sum + bpf_htons(IPPROTO_UDP) + saved->udp.len;
	else
		work->udp_sum = (__u64)(__u16)~saved->udp.check + (__u32)~saved->ip.saddr + (__u32)~saved->ip.daddr +
				(__u16)~saved->udp.source + (__u16)~saved->udp.dest + lane->sum + lane->port;
	return true;
}

static __always_inline bool begin6(struct work *work, const struct parsed *parsed, const struct lane *lane)
{
	const struct headers6 *saved = &parsed->saved.six;
	struct headers6 *packet = HEADERS(struct headers6, work->skb);

	if (!packet)
		return false;
	address_from(ETHERNET(packet), lane);
	*(__be32 *)packet = first_word6(parsed->tos);
	packet->ip.hop_limit = REFLECT_TTL;
	__builtin_memcpy(&packet->ip.saddr, lane->address, 16);
	packet->udp.source = lane->port;
	if (work->checksum == PARTIAL)
		work->udp_sum = (__u64)lane->sum + bpf_htons(IPPROTO_UDP) + saved->udp.len;
	else
		work->udp_sum = (__u64)(__u16)~saved->udp.check + (__u16)~fold(sum16(&saved->ip.saddr)) +
				(__u16)~fold(sum16(&saved->ip.daddr)) + (__u16)~saved->udp.source +
				(__u16)~saved->udp.dest + lane->sum + lane->port;
	return true;
}

/* Hands a datagram that was admitted to user space, which goes on at a position of a lane. */
static __always_inline void hand(struct __sk_buff *skb, const struct parsed *parsed, const struct judged *judged,
				 struct counters *count, __u32 headers_bytes, __u32 lane, __u64 region, __u32 position)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct rescue_room *room = bpf_map_lookup_elem(&rescue_rooms, &cpu);
	__u32 bytes = parsed->payload;

	bytes &= REFLECT_PAYLOAD_MAX;
	if (!room || (bytes && bpf_skb_load_bytes(skb, headers_bytes, room->bytes, bytes))) {
		count->handed_lost++;
		return;
	}
	__builtin_memset(&room->rescue, 0, sizeof(room->rescue));
	room->rescue.group = judged->index;
	room->rescue.device = skb->ifindex;
	room->rescue.tos = parsed->tos;
	room->rescue.no_except = !!(judged->sender->flags & REFLECT_SENDER_ECHO);
	room->rescue.except_port = parsed->key.port;
	__builtin_memcpy(room->rescue.except, parsed->key.address, 16);
	room->rescue.bytes = bytes;
	go_on_at(&room->rescue, lane, region, position);
	hand_over(judged->group, count);
	put_rescue(&room->rescue, sizeof(room->rescue) + bytes, judged->group, count);
}

/* Copies a datagram that was admitted, lane by lane. */
static __always_inline int copy(struct __sk_buff *skb, const struct parsed *parsed, const struct judged *judged,
				struct counters *count, __u32 headers_bytes, bool ipv6)
{
	struct group *group = judged->group;
	struct work work = {.skb = skb, .except_port = parsed->key.port};
	__u32 lanes_end = READ_ONCE(group->lanes);
	__u32 number;
	__u64 region = 0;

	__builtin_memcpy(work.except, parsed->key.address, 16);
	work.no_except = judged->sender->flags & REFLECT_SENDER_ECHO;
	if (parsed->check)
		work.checksum = checksum_kind(
			skb, ipv6 ? ETH_HLEN + offsetof(struct headers6, udp.check) : ETH_HLEN + offsetof(struct headers4, udp.check), parsed->check);
	work.summed = bpf_csum_update(skb, 0) >= 0;
	if (work.summed)
		work.headers = ipv6 ? headers_sum6(&parsed->saved.six) : headers_sum4(&parsed->saved.four);
	for (number = 0; number < REFLECT_LANES_MAX; number++) {
		if (number >= lanes_end)
			break;

		__u32 at = group->lane[number];
		struct lane *lane = bpf_map_lookup_elem(&lanes, &at);

		if (!lane)
			break;
		region = READ_ONCE(lane->region);
		work.base = region;
		work.device = READ_ONCE(lane->mtu) >= parsed->length ? lane->device : 0;
		if (!(ipv6 ? begin6(&work, parsed, lane) : begin4(&work, parsed, lane)))
			break;
		bpf_loop(region >> REFLECT_REGION_COUNT_SHIFT & REFLECT_REGION_COUNT_MASK, ipv6 ? copy6 : copy4, &work, 0);
		if (work.stopped)
			break;
	}
	count->copies += work.copies;
	count->undeliverable += work.undeliverable;
	__sync_fetch_and_add(&group->copies, work.copies);
	if (work.stopped)
		hand(skb, parsed, judged, count, headers_bytes, number, region, work.stop);
	return TC_ACT_SHOT;
}

static __always_inline int reflect_datagram(struct __sk_buff *skb, bool ipv6)
{
	struct parsed parsed = {};
	struct judged judged = {};
	struct counters *count = counters();
	__u32 headers_bytes = ETH_HLEN + (ipv6 ? sizeof(struct headers6) : sizeof(struct headers4));
	__u8 first[8] = {};
	int action;

	if ((long)skb->data + headers_bytes > (long)skb->data_end && bpf_skb_pull_data(skb, headers_bytes))
		return NEXT;
	if (!count || !(ipv6 ? parse6(skb, &parsed) : parse4(skb, &parsed)))
		return NEXT;
	/* A short frame may carry bytes after the datagram that only fill it up; a longer one has no cause to. */
	if (parsed.length + ETH_HLEN > skb->len || (parsed.length + ETH_HLEN < skb->len && skb->len > ETH_ZLEN))
		return NEXT;
	if (!is_local(parsed.local, parsed.local_port))
		return NEXT;
	if (parsed.payload >= REFLECT_MAGIC_BYTES &&
	    (bpf_skb_load_bytes(skb, headers_bytes, first, REFLECT_MAGIC_BYTES) || is_control(first)))
		return NEXT;

	struct flight *flight = flight_begin();

	if (!flight)
		return NEXT;
	switch (judge(&parsed.key, skb->ifindex, parsed.payload, ipv6, count, &judged)) {
	case COPY:
		action = copy(skb, &parsed, &judged, count, headers_bytes, ipv6);
		break;
	case HAND:
		hand(skb, &parsed, &judged, count, headers_bytes, 0, first_region(judged.group), 0);
		action = TC_ACT_SHOT;
		break;
	case REFUSE:
		action = TC_ACT_SHOT;
		break;
	default:
		count->passed_up++;
		action = NEXT;
	}
	flight_end(flight);
	return action;
}

SEC("classifier")
int reflect_tc(struct __sk_buff *skb)
{
	/* Other hosts' packets, tagged ones, and several datagrams that travel as one are for the stack to sort out. */
	if (skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->gso_size)
		return NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return reflect_datagram(skb, false);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return reflect_datagram(skb, true);
	return NEXT;
}

char _license[] SEC("license") = "Apache-2.0";
