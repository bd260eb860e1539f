/* Calls with wrong arguments: each is to return an error, and the program is to go on. */
#include <nacre.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed;

#define EXPECT(code, call)                                                                                             \
    do {                                                                                                               \
        int got = (call), again = 100;                                                                                 \
        /* Under valgrind, on a busy machine, a server may be too slow for a lock's time limit. */                     \
        while (got == NACRE_UNAVAILABLE && got != (code) && again--) got = (call);                                     \
        if (got != (code)) {                                                                                           \
            printf("line %d: %s returned %d (%s), not %d\n", __LINE__, #call, got, nacre_error_text(), (code));        \
            failed = 1;                                                                                                \
        }                                                                                                              \
    } while (0)

#define SAYS(text)                                                                                                     \
    do {                                                                                                               \
        if (!strstr(nacre_error_text(), text)) {                                                                       \
            printf("line %d: \"%s\" does not say \"%s\"\n", __LINE__, nacre_error_text(), text);                       \
            failed = 1;                                                                                                \
        }                                                                                                              \
    } while (0)

int main(int count, char **arguments) {
    nacre_store *store = NULL, *other = NULL;
    nacre_object *object = NULL, *fork = NULL;
    nacre_transaction *transaction = NULL;
    nacre_result *result = NULL;
    nacre_pattern *pattern = NULL;
    nacre_datatype *datatype = NULL, *next = NULL;
    nacre_lock *lock = NULL, *second = NULL;
    nacre_refusal refusal;
    nacre_range range;
    nacre_stat stat;
    nacre_region regions[2] = {{0, 8}, {16, 8}};
    nacre_key_range keys;
    const nacre_entry *entries;
    const nacre_extent *extents;
    const uint64_t *sessions;
    const void *data;
    char buffer[64], text[256];
    uint64_t version = 0, number = 0;
    size_t length = 0;
    int index, more = 0;

    if (count != 2) return 2;
    if (nacre_error_text()[0] != 0) failed = 1;

    /* NULLs, and handles that are none. */
    EXPECT(NACRE_INVALID, nacre_open(NULL, &store));
    EXPECT(NACRE_INVALID, nacre_open(arguments[1], NULL));
    EXPECT(NACRE_INVALID, nacre_open("no such thing", &store));
    SAYS("names no kind of store");
    /* Paths have any bytes, which messages escape. */
    EXPECT(NACRE_IO, nacre_open("file:no/such\xff\xfe", &store));
    SAYS("no/such\\xff\\xfe");
    if (store) failed = 1;
    EXPECT(NACRE_INVALID, nacre_store_close(NULL));
    SAYS("the handle on a store is NULL");
    EXPECT(NACRE_INVALID, nacre_store_close((nacre_store *)(void *)&number));
    EXPECT(NACRE_INVALID, nacre_object_write(NULL, 0, "x", 1, NULL));
    EXPECT(NACRE_INVALID, nacre_transaction_create(NULL));
    EXPECT(NACRE_INVALID, nacre_lock_check(NULL));
    EXPECT(NACRE_INVALID, nacre_result_count(NULL, &length));

    EXPECT(NACRE_OK, nacre_open(arguments[1], &store));
    EXPECT(NACRE_OK, nacre_object_open(store, "object", NACRE_STRING, &object));
    /* A handle of another kind. */
    EXPECT(NACRE_INVALID, nacre_object_create((nacre_object *)(void *)store));
    SAYS("the handle on an object is none, or was closed");
    EXPECT(NACRE_INVALID, nacre_store_close((nacre_store *)(void *)object));

    /* Names: empty, too long, of any bytes, without a zero. */
    EXPECT(NACRE_INVALID, nacre_object_open(store, "", 0, &fork));
    EXPECT(NACRE_INVALID, nacre_object_open(store, NULL, NACRE_STRING, &fork));
    EXPECT(NACRE_INVALID, nacre_object_open(store, NULL, 3, &fork));
    EXPECT(NACRE_INVALID, nacre_object_open(store, buffer, SIZE_MAX / 2, &fork));
    EXPECT(NACRE_INVALID, nacre_object_open(store, buffer, SIZE_MAX - 1, &fork));
    memset(text, 'x', sizeof text);
    EXPECT(NACRE_INVALID, nacre_object_open(store, text, sizeof text, &fork));
    EXPECT(NACRE_OK, nacre_object_open(store, "a\0b\xff", 4, &fork));
    EXPECT(NACRE_OK, nacre_object_create(fork));
    EXPECT(NACRE_REFUSED, nacre_object_create(fork));
    EXPECT(NACRE_OK, nacre_store_list(store, NULL, 0, 10, &result));
    EXPECT(NACRE_OK, nacre_result_entries(result, 0, &entries, &length, &more));
    if (length != 1 || entries[0].name_length != 4 || memcmp(entries[0].name, "a\0b\xff", 4) != 0 || more) failed = 1;
    EXPECT(NACRE_OK, nacre_result_close(result));
    EXPECT(NACRE_INVALID, nacre_result_close(result));
    EXPECT(NACRE_INVALID, nacre_result_entries(result, 0, &entries, &length, NULL));
    EXPECT(NACRE_OK, nacre_object_remove(fork));
    EXPECT(NACRE_ABSENT, nacre_object_remove(fork));
    EXPECT(NACRE_OK, nacre_object_close(fork));
    EXPECT(NACRE_INVALID, nacre_object_close(fork));
    EXPECT(NACRE_INVALID, nacre_object_fork(object, text, sizeof text, &fork));

    /* Lengths. */
    EXPECT(NACRE_OK, nacre_object_write(object, 0, NULL, 0, &version));
    EXPECT(NACRE_INVALID, nacre_object_write(object, 0, NULL, 1, &version));
    EXPECT(NACRE_INVALID, nacre_object_write(object, 0, "x", SIZE_MAX, &version));
    EXPECT(NACRE_INVALID, nacre_object_write(object, 0, "x", (size_t)17 << 20, &version));
    EXPECT(NACRE_INVALID, nacre_object_write(object, UINT64_MAX, "x", 1, &version));
    EXPECT(NACRE_INVALID, nacre_object_read(object, 0, NULL, 8, &length, NULL));
    EXPECT(NACRE_INVALID, nacre_object_read(object, 0, buffer, SIZE_MAX, &length, NULL));
    EXPECT(NACRE_INVALID, nacre_object_read(object, 0, buffer, 8, NULL, NULL));
    EXPECT(NACRE_INVALID, nacre_object_read(object, UINT64_MAX, buffer, 8, &length, NULL));
    EXPECT(NACRE_INVALID, nacre_object_truncate(object, UINT64_MAX, NULL));
    EXPECT(NACRE_INVALID, nacre_object_zero(object, UINT64_MAX, UINT64_MAX, NULL));
    EXPECT(NACRE_OK, nacre_object_read(object, 0, NULL, 0, &length, NULL));

    /* A conditional write, its refusal, and what it stores. */
    EXPECT(NACRE_OK, nacre_object_write(object, 0, "first", 5, &version));
    EXPECT(NACRE_OK, nacre_object_write_if(object, 0, "other", 5, version, &number, NULL, NULL));
    EXPECT(NACRE_REFUSED, nacre_object_write_if(object, 0, "third", 5, version, &version, buffer, &length));
    if (version != number || length != 5 || memcmp(buffer, "other", 5) != 0) failed = 1;

    /* A refusal gives all bytes of a range, also of one of more extents than a reply tells of. */
    static nacre_piece pieces[4500];
    static char many[9000];
    EXPECT(NACRE_OK, nacre_object_open(store, "many", NACRE_STRING, &fork));
    for (int at = 0; at < 4500; at++) pieces[at] = (nacre_piece){ (uint64_t)at * 2, "x", 1 };
    EXPECT(NACRE_OK, nacre_transaction_new(&transaction));
    EXPECT(NACRE_OK, nacre_transaction_write_pieces(transaction, NULL, 0, pieces, 4500));
    EXPECT(NACRE_OK, nacre_transaction_apply(transaction, fork, NULL));
    EXPECT(NACRE_OK, nacre_transaction_close(transaction));
    EXPECT(NACRE_REFUSED, nacre_object_write_if(fork, 0, many, sizeof many, 0, &version, many, &length));
    if (length != 8999 || many[8998] != 'x' || many[8997] != 0) failed = 1;
    EXPECT(NACRE_OK, nacre_object_remove(fork));
    EXPECT(NACRE_OK, nacre_object_close(fork));

    /* Appends, and guards of sizes. */
    EXPECT(NACRE_OK, nacre_object_open(store, "journal", NACRE_STRING, &fork));
    EXPECT(NACRE_OK, nacre_object_append(fork, "one", 3, NULL, NULL));
    EXPECT(NACRE_OK, nacre_object_append(fork, "two", 3, &number, &version));
    if (number != 3 || version != 2) failed = 1;
    EXPECT(NACRE_INVALID, nacre_object_append(fork, NULL, 1, &number, NULL));
    EXPECT(NACRE_INVALID, nacre_object_append(fork, "x", (size_t)17 << 20, &number, NULL));
    EXPECT(NACRE_OK, nacre_transaction_new(&transaction));
    EXPECT(NACRE_OK, nacre_transaction_if_size(transaction, NULL, 0, 6));
    EXPECT(NACRE_OK, nacre_transaction_append(transaction, NULL, 0, "!", 1));
    EXPECT(NACRE_OK, nacre_transaction_apply(transaction, fork, NULL));
    EXPECT(NACRE_REFUSED, nacre_transaction_apply(transaction, fork, &result));
    EXPECT(NACRE_OK, nacre_result_refusal(result, &refusal));
    if (refusal.found != NACRE_FOUND_SIZE || refusal.number != 7) failed = 1;
    EXPECT(NACRE_OK, nacre_result_close(result));
    EXPECT(NACRE_OK, nacre_transaction_close(transaction));
    EXPECT(NACRE_OK, nacre_object_remove(fork));
    EXPECT(NACRE_OK, nacre_object_close(fork));

    /* Keys and attributes. */
    EXPECT(NACRE_ABSENT, nacre_object_key_get(object, "k", 1, buffer, sizeof buffer, &length, &version));
    EXPECT(NACRE_OK, nacre_object_key_set(object, "k\0\xfe", 3, "value", 5, &version));
    EXPECT(NACRE_TOO_SHORT, nacre_object_key_get(object, "k\0\xfe", 3, buffer, 4, &length, NULL));
    EXPECT(NACRE_OK, nacre_object_key_get(object, "k\0\xfe", 3, buffer, length, &length, &number));
    if (length != 5 || memcmp(buffer, "value", 5) != 0 || number != version) failed = 1;
    EXPECT(NACRE_REFUSED, nacre_object_key_set_if(object, "k\0\xfe", 3, "x", 1, 0, &number));
    if (number != version) failed = 1;
    EXPECT(NACRE_OK, nacre_object_key_set_if(object, "k\0\xfe", 3, "x", 1, version, &version));
    EXPECT(NACRE_REFUSED, nacre_object_key_remove_if(object, "k\0\xfe", 3, 1, NULL));
    EXPECT(NACRE_OK, nacre_object_attribute_set(object, "colour", NACRE_STRING, "blue", 4, NULL));
    EXPECT(NACRE_OK, nacre_object_attribute_get(object, "colour", NACRE_STRING, buffer, 4, &length));
    EXPECT(NACRE_ABSENT, nacre_object_attribute_get(object, "size", NACRE_STRING, buffer, 4, &length));
    EXPECT(NACRE_OK, nacre_object_stat(object, &stat));
    if (!stat.exists || stat.bytes != 5 || stat.keys != 1 || stat.attributes != 1) failed = 1;
    memset(&keys, 0, sizeof keys);
    keys.prefix = "k";
    keys.prefix_length = SIZE_MAX / 2;
    EXPECT(NACRE_INVALID, nacre_object_keys(object, &keys, 10, 1, &result));
    keys.prefix_length = 1;
    EXPECT(NACRE_OK, nacre_object_keys(object, &keys, 10, 1, &result));
    EXPECT(NACRE_OK, nacre_result_entries(result, 0, &entries, &length, NULL));
    if (length != 1 || entries[0].value_length != 1 || entries[0].version != version) failed = 1;
    EXPECT(NACRE_OK, nacre_result_close(result));

    /* A transaction of all reads, and one that is refused. */
    EXPECT(NACRE_OK, nacre_transaction_new(&transaction));
    EXPECT(NACRE_OK, nacre_transaction_if_exists(transaction));
    EXPECT(NACRE_OK, nacre_transaction_if_attribute(transaction, "colour", 6, NACRE_CHECK_EQUAL, "blue", 4));
    EXPECT(NACRE_INVALID, nacre_transaction_if_key(transaction, "k", 1, 99, "x", 1));
    EXPECT(NACRE_INVALID, nacre_transaction_write(transaction, NULL, 0, 0, NULL, 7));
    EXPECT(NACRE_INVALID, nacre_transaction_read_range(transaction, NULL, 0, 0, 8, 5));
    EXPECT(NACRE_OK, nacre_transaction_read_range(transaction, NULL, 0, 0, 100, NACRE_INTENT_LOOK));
    EXPECT(NACRE_OK, nacre_transaction_read_stat(transaction));
    EXPECT(NACRE_OK, nacre_transaction_read_attribute(transaction, "colour", NACRE_STRING));
    EXPECT(NACRE_OK, nacre_transaction_read_key(transaction, "none", NACRE_STRING));
    EXPECT(NACRE_OK, nacre_transaction_read_fences(transaction));
    EXPECT(NACRE_OK, nacre_transaction_fence_session(transaction, 7));
    EXPECT(NACRE_OK, nacre_transaction_apply(transaction, object, &result));
    EXPECT(NACRE_OK, nacre_result_count(result, &length));
    if (length != 5) failed = 1;
    EXPECT(NACRE_OK, nacre_result_data(result, 0, &data, &length));
    if (length != 5 || memcmp(data, "other", 5) != 0) failed = 1;
    EXPECT(NACRE_OK, nacre_result_range(result, 0, &range));
    if (range.size != 5 || range.is_cut) failed = 1;
    EXPECT(NACRE_OK, nacre_result_extents(result, 0, &extents, &length));
    if (length != 1 || extents[0].length != 5 || extents[0].kind != NACRE_EXTENT_DATA) failed = 1;
    EXPECT(NACRE_OK, nacre_result_stat(result, 1, &stat));
    EXPECT(NACRE_INVALID, nacre_result_stat(result, 0, &stat));
    EXPECT(NACRE_ABSENT, nacre_result_data(result, 3, &data, &length));
    EXPECT(NACRE_OK, nacre_result_fences(result, 4, &number, &sessions, &length));
    EXPECT(NACRE_INVALID, nacre_result_data(result, 5, &data, &length));
    EXPECT(NACRE_INVALID, nacre_result_data(result, NACRE_FOUND, &data, &length));
    EXPECT(NACRE_ABSENT, nacre_result_refusal(result, &refusal));
    EXPECT(NACRE_OK, nacre_result_close(result));
    EXPECT(NACRE_OK, nacre_transaction_if_region(transaction, NULL, 0, 0, 5, 0));
    EXPECT(NACRE_REFUSED, nacre_transaction_apply(transaction, object, &result));
    EXPECT(NACRE_OK, nacre_result_refusal(result, &refusal));
    if (refusal.guard != 2 || refusal.found != NACRE_FOUND_REGION) failed = 1;
    EXPECT(NACRE_OK, nacre_result_data(result, NACRE_FOUND, &data, &length));
    if (length != 5 || memcmp(data, "other", 5) != 0) failed = 1;
    EXPECT(NACRE_OK, nacre_result_close(result));
    EXPECT(NACRE_OK, nacre_transaction_close(transaction));
    EXPECT(NACRE_OK, nacre_store_for_session(store, 7, &other));
    EXPECT(NACRE_OK, nacre_object_open(other, "object", NACRE_STRING, &fork));
    EXPECT(NACRE_DENIED, nacre_object_write(fork, 0, "x", 1, NULL));
    EXPECT(NACRE_OK, nacre_object_close(fork));
    EXPECT(NACRE_OK, nacre_store_close(other));
    EXPECT(NACRE_OK, nacre_transaction_new(&transaction));
    for (index = 0; index < 4096; index++) EXPECT(NACRE_OK, nacre_transaction_create(transaction));
    EXPECT(NACRE_INVALID, nacre_transaction_create(transaction));
    EXPECT(NACRE_OK, nacre_transaction_close(transaction));

    /* Patterns. */
    EXPECT(NACRE_INVALID, nacre_pattern_parse("vector(", &pattern));
    EXPECT(NACRE_INVALID, nacre_pattern_list(regions, SIZE_MAX, &pattern));
    EXPECT(NACRE_INVALID, nacre_pattern_list(NULL, 2, &pattern));
    EXPECT(NACRE_OK, nacre_pattern_range(UINT64_MAX, UINT64_MAX, &pattern));
    EXPECT(NACRE_INVALID, nacre_pattern_check(pattern));
    EXPECT(NACRE_INVALID, nacre_lock_acquire(store, "object", 6, pattern, NACRE_LOCK_SHARED, 0, &lock));
    EXPECT(NACRE_OK, nacre_pattern_close(pattern));
    EXPECT(NACRE_OK, nacre_datatype_bytes(4, &datatype));
    for (index = 0; index < 31; index++) {
        EXPECT(NACRE_OK, nacre_datatype_contiguous(datatype, 1, &next));
        EXPECT(NACRE_OK, nacre_datatype_close(datatype));
        datatype = next;
    }
    EXPECT(NACRE_INVALID, nacre_datatype_contiguous(datatype, 1, &next));
    SAYS("deep");
    EXPECT(NACRE_OK, nacre_datatype_close(datatype));
    EXPECT(NACRE_OK, nacre_datatype_bytes(4, &datatype));
    for (index = 0; index < 40; index++) {
        nacre_member both[2];
        both[0].count = both[1].count = 1;
        both[0].displacement = both[1].displacement = 0;
        both[0].of = both[1].of = datatype;
        /* Twice as many parts each time. */
        if (nacre_datatype_struct(both, 2, &next) != NACRE_OK) break;
        EXPECT(NACRE_OK, nacre_datatype_close(datatype));
        datatype = next;
    }
    if (index >= 20) failed = 1;
    EXPECT(NACRE_OK, nacre_datatype_close(datatype));
    EXPECT(NACRE_INVALID, nacre_datatype_subarray(datatype, 3, NULL, NULL, NULL, 0, &next));

    /* Locks. */
    EXPECT(NACRE_OK, nacre_pattern_list(regions, 2, &pattern));
    EXPECT(NACRE_TOO_SHORT, nacre_pattern_text(pattern, text, 3, &length));
    EXPECT(NACRE_OK, nacre_pattern_text(pattern, text, length + 1, &length));
    if (strlen(text) != length) failed = 1;
    EXPECT(NACRE_INVALID, nacre_lock_acquire(store, "\xff", 1, pattern, NACRE_LOCK_SHARED, 0, &lock));
    EXPECT(NACRE_INVALID, nacre_lock_acquire(store, "object", 6, pattern, 7, 0, &lock));
    EXPECT(NACRE_OK, nacre_lock_acquire(store, "object", 6, pattern, NACRE_LOCK_EXCLUSIVE, 0, &lock));
    EXPECT(NACRE_OK, nacre_lock_token(lock, &number));
    EXPECT(NACRE_OK, nacre_lock_check(lock));
    EXPECT(NACRE_BUSY, nacre_lock_acquire(store, "object", 6, NULL, NACRE_LOCK_SHARED, 0, &second));
    EXPECT(NACRE_BUSY, nacre_lock_acquire(store, "object", 6, pattern, NACRE_LOCK_SHARED, 20, &second));
    if (second) failed = 1;
    EXPECT(NACRE_OK, nacre_lock_store(lock, &other));
    EXPECT(NACRE_OK, nacre_object_open(other, "object", 6, &fork));
    EXPECT(NACRE_OK, nacre_object_write(fork, 0, "locked", 6, NULL));
    EXPECT(NACRE_OK, nacre_lock_release(lock));
    EXPECT(NACRE_INVALID, nacre_lock_release(lock));
    EXPECT(NACRE_CLOSED, nacre_object_write(fork, 0, "late", 4, NULL));
    EXPECT(NACRE_OK, nacre_object_close(fork));
    EXPECT(NACRE_OK, nacre_store_close(other));
    EXPECT(NACRE_OK, nacre_lock_acquire(store, "object", 6, NULL, NACRE_LOCK_SHARED, 10000, &lock));
    EXPECT(NACRE_OK, nacre_store_end_locks(store));
    EXPECT(NACRE_CLOSED, nacre_lock_check(lock));
    EXPECT(NACRE_CLOSED, nacre_lock_release(lock));
    EXPECT(NACRE_OK, nacre_pattern_close(pattern));

    /* The end. */
    EXPECT(NACRE_OK, nacre_store_close(store));
    EXPECT(NACRE_INVALID, nacre_store_close(store));
    EXPECT(NACRE_CLOSED, nacre_object_write(object, 0, "x", 1, NULL));
    EXPECT(NACRE_OK, nacre_object_close(object));
    if (strcmp(nacre_code_text(NACRE_REFUSED), "refused by a guard") != 0 || !nacre_code_text(-5)[0]) failed = 1;
    if (!nacre_version()[0]) failed = 1;
    if (!failed) printf("all as it should be\n");
    return failed;
}
