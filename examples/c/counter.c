/*
 * A counter that many processes add to, without a lock: each reads it with its version, and writes the next number on condition that the
 * version is still the same. Who comes late is told the new number and version, and tries again with those.
 *
 *   cc counter.c $(pkg-config --cflags --libs nacre) -o counter
 *   ./counter nacre://localhost:6470 visits 1000
 */
#include <nacre.h>

#include <stdio.h>
#include <stdlib.h>

/* Ends the program if a call failed. */
static void must(int code, const char *what) {
    if (code != NACRE_OK) {
        fprintf(stderr, "counter: %s: %s\n", what, nacre_error_text());
        exit(1);
    }
}

int main(int count, char **arguments) {
    nacre_store *store;
    nacre_object *object;
    uint64_t number = 0, version = 0;
    size_t length = 0;
    long times, late = 0;

    if (count != 4) {
        fprintf(stderr, "usage: counter STORE OBJECT TIMES\n");
        return 2;
    }
    must(nacre_open(arguments[1], &store), "open");
    must(nacre_object_open(store, arguments[2], NACRE_STRING, &object), "object");

    for (times = strtol(arguments[3], NULL, 10); times > 0; times--) {
        must(nacre_object_read(object, 0, &number, sizeof number, &length, &version), "read");
        for (;;) {
            uint64_t next = length == sizeof number ? number + 1 : 1;
            int code = nacre_object_write_if(object, 0, &next, sizeof next, version, &version, &number, &length);
            if (code != NACRE_REFUSED) {
                must(code, "write");
                break;
            }
            late++;
        }
    }

    must(nacre_object_read(object, 0, &number, sizeof number, &length, &version), "read");
    printf("counter %llu, late %ld times\n", (unsigned long long)number, late);
    must(nacre_object_close(object), "close");
    must(nacre_store_close(store), "close");
    return 0;
}
