/*
 * A transaction: moves an amount from one key of an object to another. Both are set, or neither is, and only if nobody changed them meanwhile.
 *
 *   ./transfer nacre://localhost:6470 accounts ada grace 5
 *
 * A key that is not there holds 100.
 */
#include <nacre.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int code, const char *what) {
    if (code != NACRE_OK) {
        fprintf(stderr, "transfer: %s: %s\n", what, nacre_error_text());
        exit(1);
    }
}

/* Reads an answer: the amount that a key holds, and the key's version. */
static long amount_of(nacre_result *result, size_t answer, uint64_t *version) {
    const void *data;
    size_t length;
    char text[32] = "100";
    int code = nacre_result_data(result, answer, &data, &length);

    if (code != NACRE_ABSENT) {
        must(code, "answer");
        if (length >= sizeof text) {
            fprintf(stderr, "transfer: that is no amount\n");
            exit(1);
        }
        memcpy(text, data, length);
        text[length] = 0;
    }
    must(nacre_result_key_version(result, answer, version), "version");
    return strtol(text, NULL, 10);
}

static void set(nacre_transaction *change, const char *key, long amount, uint64_t version) {
    char text[32];
    int length = snprintf(text, sizeof text, "%ld", amount);

    must(nacre_transaction_if_key_version(change, key, NACRE_STRING, version), "guard");
    must(nacre_transaction_set_key(change, key, NACRE_STRING, text, (size_t)length), "set");
}

int main(int count, char **arguments) {
    nacre_store *store;
    nacre_object *object;
    nacre_transaction *look;
    long amount, late = 0;

    if (count != 6) {
        fprintf(stderr, "usage: transfer STORE OBJECT FROM TO AMOUNT\n");
        return 2;
    }
    amount = strtol(arguments[5], NULL, 10);
    must(nacre_open(arguments[1], &store), "open");
    must(nacre_object_open(store, arguments[2], NACRE_STRING, &object), "object");
    must(nacre_transaction_new(&look), "transaction");
    must(nacre_transaction_read_versioned_key(look, arguments[3], NACRE_STRING), "read");
    must(nacre_transaction_read_versioned_key(look, arguments[4], NACRE_STRING), "read");

    for (;;) {
        nacre_result *result;
        nacre_transaction *change;
        uint64_t from_version, to_version;
        long from, to;
        int code;

        /* Both as they stood at one moment. */
        must(nacre_transaction_apply(look, object, &result), "read");
        from = amount_of(result, 0, &from_version);
        to = amount_of(result, 1, &to_version);
        must(nacre_result_close(result), "close");

        must(nacre_transaction_new(&change), "transaction");
        set(change, arguments[3], from - amount, from_version);
        set(change, arguments[4], to + amount, to_version);
        code = nacre_transaction_apply(change, object, NULL);
        must(nacre_transaction_close(change), "close");
        if (code != NACRE_REFUSED) {
            must(code, "transfer");
            printf("%s %ld, %s %ld, late %ld times\n", arguments[3], from - amount, arguments[4], to + amount, late);
            break;
        }
        late++;
    }
    must(nacre_transaction_close(look), "close");
    must(nacre_object_close(object), "close");
    must(nacre_store_close(store), "close");
    return 0;
}
