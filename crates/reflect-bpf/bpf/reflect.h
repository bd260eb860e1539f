/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the reflector and its programs in the kernel share: groups, lanes, places, senders, counters.
 *
 * User space is the only writer of everything here, but for what is said to be the kernel's. It writes through memory that it
 * shares with the programs (arrays that can be mapped), so there is no system call for a change. Every word that can change
 * while a program looks at it is 64 bits, aligned, and stored at once:
 *
 * - `lane.region` says which places a lane has. Members are appended by writing a place and then a region with one more.
 * - `place.hop` says whether there is anybody at a place, and by which Ethernet address. Leaving is a gap.
 *
 * A region, a lane or a group that is given up is used again only when every program that may have seen it has ended:
 * `flight` tells.
 *
 * Addresses are kept as the IPv6 header has them, IPv4 ones mapped (::ffff:a.b.c.d); ports and addresses are in network
 * order, all else is the machine's. The `#define`s with the prefix REFLECT_ become constants of the Rust side when this
 * crate is built, so that each is defined once.
 */
#ifndef REFLECT_H
#define REFLECT_H

#include <linux/bpf.h>
#include <linux/types.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the layouts here are those of little-endian machines"
#endif

/* The control protocol's magic: the first six bytes of a datagram that is for the reflector itself, in every version of the
 * protocol, as a little-endian number. */
#define REFLECT_MAGIC 0x0a6c66726e89ull
#define REFLECT_MAGIC_BYTES 6

/* How many lanes a group may have in the kernel, and how many places a lane. */
#define REFLECT_LANES_MAX 8
#define REFLECT_PLACES_MAX 4096

/* group.flags */
#define REFLECT_GROUP_LIVE 1 /* There is such a group. */
#define REFLECT_GROUP_USER 2 /* User space makes its copies. */
#define REFLECT_GROUP_IPV6 4 /* Its members are reached by IPv6, otherwise by IPv4. */
#define REFLECT_GROUP_KEEP 8 /* What comes while something of it waits in user space waits there too, and is not refused. */
#define REFLECT_GROUP_PAIR 16 /* Likewise, but for who is alone in a lane: two lanes have members. */

/* The top 16 bits of place.hop */
#define REFLECT_PLACE_LIVE 1 /* Somebody is here, and `hop` has the Ethernet address. Otherwise it is a gap. */

/* sender.flags */
#define REFLECT_SENDER_ECHO 1    /* It wants copies of its own datagrams too. */
#define REFLECT_SENDER_ADDRESS 2 /* Its rate is that of its address. */

/* lane.region: the first place, how many, and the low 8 bits of the generation. */
#define REFLECT_REGION_COUNT_SHIFT 32
#define REFLECT_REGION_COUNT_MASK 0xffffff
#define REFLECT_REGION_GENERATION_SHIFT 56

/* How long the structures below are. */
#define REFLECT_PLACE_BYTES 32
#define REFLECT_LANE_BYTES 64
#define REFLECT_GROUP_BYTES 192
#define REFLECT_FLIGHT_BYTES 64
#define REFLECT_TOTALS_BYTES 128
#define REFLECT_SENDER_KEY_BYTES 24
#define REFLECT_SENDER_BYTES 20
#define REFLECT_LOCAL_KEY_BYTES 20
#define REFLECT_COUNTERS_BYTES 88
#define REFLECT_RESCUE_BYTES 40

/* The longest payload that is handed to user space: the longest of UDP. */
#define REFLECT_PAYLOAD_MAX 65535

/* A datagram's copies carry this. */
#define REFLECT_TTL 64

/* One place of a lane: 32 bytes. */
struct place {
	__u8 address[16];
	__be16 port;
	__u16 sum;   /* the ones' complement sum of `address`'s last 4 bytes (IPv4) or all 16 (IPv6), as they lie in memory */
	__u32 entry; /* user space's: which next hop `hop` is of */
	__u64 hop;   /* the first 6 bytes: the Ethernet address; the last 2: flags */
};

/* The members of a group behind one device, by one of the reflector's addresses: 64 bytes. */
struct lane {
	__u64 region;
	__u32 device; /* index of the network device */
	__u32 mtu;    /* of the device, in bytes of IP packet; 0 while it takes nothing */
	__u8 mac[6];  /* of the device */
	__be16 port;  /* of the reflector */
	__u16 sum;    /* as in a place */
	__u16 spare;
	__u8 address[16]; /* of the reflector */
	__u32 pad;
	__u32 live; /* how many members */
	__u32 spares[3];
};

/* A group: 192 bytes. */
struct group {
	__u32 flags;
	__u32 lanes;   /* how many of `lane` are used */
	__u32 members; /* how many members, which is what a datagram costs */
	__u32 bound;   /* how many datagrams may be handed over and not yet finished */
	__u64 group_copy_ns;
	__u64 group_burst_ns;
	__u64 member_copy_ns;
	__u64 member_burst_ns;
	__u32 lane[REFLECT_LANES_MAX]; /* indexes of lanes */
	__u64 finished;                /* how many of those handed over user space is done with */
	__u64 number;                  /* the group's number in user space */
	__u64 address_copy_ns;
	__u64 address_burst_ns;
	__u64 spare[2];
	/* From here on a cache line that the programs write. */
	__u64 bucket_ns; /* when the group's bucket is full again */
	__u64 handed;    /* how many datagrams were handed over */
	__u64 datagrams; /* how many the kernel admitted */
	__u64 copies;    /* how many copies devices took */
	__u64 over_rate; /* how many datagrams were refused because of rates */
	__u64 backlog;   /* how many because too many waited */
	__u64 spares[2];
};

/* Who sends: the key of the hash of senders. */
struct sender_key {
	__u8 address[16];
	__be16 port;
	__be16 local_port; /* the reflector's, which names the group (or those that share it) */
	__u32 device;      /* the device's index where the address is link-local and so means nothing without; else 0 */
};

/* What is known of a sender. */
struct sender {
	__u32 group;
	__u32 device; /* where it is: from anywhere else it is not believed here, but passed up */
	__u32 flags;
	__u32 lane;   /* the number of its lane in the group */
	__u32 bucket; /* index of the bucket of the owner of its rate */
};

/* The reflector's own addresses: the key of the set of them. All zeros for an address mean any, in that family. */
struct local_key {
	__u8 address[16];
	__be16 port;
	__u16 spare;
};

/* What happened on one processor: the kernel's. The names are those of `plane::Done`. */
struct counters {
	__u64 datagrams;
	__u64 bytes;
	__u64 copies;
	__u64 non_members;
	__u64 over_rate;
	__u64 backlog;
	__u64 undeliverable;
	__u64 handed;
	__u64 passed_up; /* to the reflector's ports, but for user space to judge */
	__u64 handed_lost; /* handed over, but the ring had no room after all */
	__u64 driver_copies; /* those of `copies` that a program in a driver made */
};

/* What goes to user space, through the ring `rescues`, of an admitted datagram that it has to copy, or to finish; the payload
 * follows. */
struct rescue {
	__u32 group;    /* its index */
	__u32 device;   /* where the datagram came in */
	__u32 bytes;    /* of payload */
	__u32 position; /* of the lane: the first place without its copy */
	__u8 lane;      /* its number; those after it have no copies yet */
	__u8 generation; /* the low bits of the lane's */
	__u8 tos;       /* the type of service of copies */
	__u8 no_except; /* The sender gets a copy, too. */
	__be16 except_port;
	__u16 spare;
	__u8 except[16];
};

/* How often a program began and ended on one processor: the kernel's. Odd while one runs. */
struct flight {
	__u64 steps;
	__u64 spare[7];
};

/* What all groups share. */
struct totals {
	__u64 finished; /* user space's: the sum over groups */
	__u64 bound;    /* user space's: how many may be under way to it */
	__u64 incomplete; /* user space's: not 0 while some members are not in `senders`, and non_members are for it to judge */
	__u64 hold; /* user space's: not 0 while sockets may hold datagrams that none may overtake: all go there */
	__u64 rescue_bytes_max; /* user space's: above this many bytes in the ring nothing is admitted */
	__u64 spare[3];
	__u64 handed; /* the kernel's: the sum over groups */
	__u64 spares[7];
};

_Static_assert(sizeof(struct place) == REFLECT_PLACE_BYTES, "place");
_Static_assert(sizeof(struct lane) == REFLECT_LANE_BYTES, "lane");
_Static_assert(sizeof(struct group) == REFLECT_GROUP_BYTES, "group");
_Static_assert(sizeof(struct flight) == REFLECT_FLIGHT_BYTES, "flight");
_Static_assert(sizeof(struct totals) == REFLECT_TOTALS_BYTES, "totals");
_Static_assert(sizeof(struct sender_key) == REFLECT_SENDER_KEY_BYTES, "sender_key");
_Static_assert(sizeof(struct sender) == REFLECT_SENDER_BYTES, "sender");
_Static_assert(sizeof(struct local_key) == REFLECT_LOCAL_KEY_BYTES, "local_key");
_Static_assert(sizeof(struct counters) == REFLECT_COUNTERS_BYTES, "counters");
_Static_assert(sizeof(struct rescue) == REFLECT_RESCUE_BYTES, "rescue");

#endif
