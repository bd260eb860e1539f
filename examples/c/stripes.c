/*
 * Locks: one of several processes adds 1 to every block of 8 bytes that is its own: the first of every N blocks for rank 0, the second for rank 1,
 * and so on. It locks exactly those bytes, so all ranks work at once, and two processes of one rank take turns.
 *
 *   ./stripes nacre://localhost:6470 results RANK RANKS
 */
#include <nacre.h>

#include <stdio.h>
#include <stdlib.h>

#define BLOCKS 16

static void must(int code, const char *what) {
    if (code != NACRE_OK) {
        fprintf(stderr, "stripes: %s: %s\n", what, nacre_error_text());
        exit(1);
    }
}

int main(int count, char **arguments) {
    nacre_store *store, *under_lock;
    nacre_datatype *block, *every_nth;
    nacre_pattern *pattern;
    nacre_lock *lock;
    nacre_object *object;
    uint64_t rank, ranks, index;

    if (count != 5) {
        fprintf(stderr, "usage: stripes STORE OBJECT RANK RANKS\n");
        return 2;
    }
    rank = strtoull(arguments[3], NULL, 10);
    ranks = strtoull(arguments[4], NULL, 10);

    /* The same as nacre_pattern_parse("view(displacement=8*RANK, of=vector(count=16, stride=RANKS, of=bytes(8)))", &pattern). */
    must(nacre_datatype_bytes(8, &block), "datatype");
    must(nacre_datatype_vector(block, BLOCKS, 1, (int64_t)ranks, &every_nth), "datatype");
    must(nacre_pattern_datatype(every_nth, 8 * rank, 1, &pattern), "pattern");

    must(nacre_open(arguments[1], &store), "open");
    must(nacre_lock_acquire(store, arguments[2], NACRE_STRING, pattern, NACRE_LOCK_EXCLUSIVE, -1, &lock), "lock");
    /* What goes through this handle is refused once the lock is lost. */
    must(nacre_lock_store(lock, &under_lock), "store");
    must(nacre_object_open(under_lock, arguments[2], NACRE_STRING, &object), "object");
    for (index = 0; index < BLOCKS; index++) {
        uint64_t offset = 8 * (rank + index * ranks), number = 0;
        size_t length;

        must(nacre_object_read(object, offset, &number, sizeof number, &length, NULL), "read");
        number = length == sizeof number ? number + 1 : 1;
        must(nacre_object_write(object, offset, &number, sizeof number, NULL), "write");
    }
    must(nacre_object_close(object), "close");
    must(nacre_store_close(under_lock), "close");
    must(nacre_lock_release(lock), "release");

    must(nacre_pattern_close(pattern), "close");
    must(nacre_datatype_close(every_nth), "close");
    must(nacre_datatype_close(block), "close");
    must(nacre_store_close(store), "close");
    return 0;
}
