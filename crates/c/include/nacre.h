/*
 * Nacre's C library. docs/c.md is the manual.
 *
 * Every function but the three that return text returns a code: NACRE_OK, which is 0, or what went wrong; nacre_error_text() has the sentence. On
 * a failure nothing is stored in the places for results, but where a function says so; places for handles hold NULL then.
 *
 * A handle can be used by several threads at once, and closed while another one uses it. One that was closed, or is of another kind, is an error:
 * NACRE_INVALID. A process that was made by fork() cannot use the handles of its parent.
 *
 * Names and data are bytes with a length. NACRE_STRING stands for the length of a name that ends with a zero. A pointer that is to lead to bytes
 * may be NULL if their number is 0. Places for versions may always be NULL, others where a function says so.
 */

#ifndef NACRE_H
#define NACRE_H

#include <stddef.h>
#include <stdint.h>

/* The length of a name that ends with a zero. */
#define NACRE_STRING SIZE_MAX

/* The number of what a refusal found, for the functions that tell of answers. */
#define NACRE_FOUND SIZE_MAX

/**
 * Success.
 */
#define NACRE_OK 0

/**
 * An argument or the request is wrong: a null pointer, a handle that was closed, a limit exceeded.
 */
#define NACRE_INVALID 1

/**
 * The medium or the quota is full, or a limit of a lock server is reached. Nothing was changed.
 */
#define NACRE_OUT_OF_SPACE 2

/**
 * The store takes no more writes. Nothing was changed.
 */
#define NACRE_READ_ONLY 3

/**
 * Stored bytes failed their checksum.
 */
#define NACRE_CORRUPT 4

/**
 * The operating system reported an error.
 */
#define NACRE_IO 5

/**
 * The server cannot be reached. Nothing was changed.
 */
#define NACRE_UNAVAILABLE 6

/**
 * The connection or the store failed while the request was under way: it may or may not have taken effect.
 */
#define NACRE_UNKNOWN 7

/**
 * The caller is not allowed to do this, or its session is fenced.
 */
#define NACRE_DENIED 8

/**
 * The store cannot do what was asked, or the library is built without it.
 */
#define NACRE_UNSUPPORTED 9

/**
 * The store was closed, or the lock is lost.
 */
#define NACRE_CLOSED 10

/**
 * The store is used by another process, or others hold some of the bytes that were to be locked.
 */
#define NACRE_BUSY 11

/**
 * A server that is newer than this library reported a failure that the library does not know. Whether the call took
 * effect is not known.
 */
#define NACRE_UNRECOGNIZED 99

/**
 * A guard did not hold: the transaction was refused, and nothing was changed.
 */
#define NACRE_REFUSED 100

/**
 * The absence of the object, key, attribute or value that was asked for.
 */
#define NACRE_ABSENT 101

/**
 * The buffer is too short; the length that is needed was stored.
 */
#define NACRE_TOO_SHORT 102

/**
 * A defect of the library, which stopped the call. Whether it took effect is not known.
 */
#define NACRE_DEFECT 103

/**
 * Others may hold the same bytes in this mode too.
 */
#define NACRE_LOCK_SHARED 0

/**
 * Exclusive: nobody else may hold any of the bytes.
 */
#define NACRE_LOCK_EXCLUSIVE 1

/**
 * The last dimension is the one in which neighbours in the file differ.
 */
#define NACRE_ORDER_C 0

/**
 * The first dimension is.
 */
#define NACRE_ORDER_FORTRAN 1

/**
 * A dimension is not distributed.
 */
#define NACRE_DISTRIBUTE_NONE 0

/**
 * A dimension is distributed in one block for each process.
 */
#define NACRE_DISTRIBUTE_BLOCK 1

/**
 * A dimension is distributed in blocks that are dealt in turn.
 */
#define NACRE_DISTRIBUTE_CYCLIC 2

/**
 * The object: there, or not there.
 */
#define NACRE_FOUND_OBJECT 1

/**
 * A range of a fork: its bytes, extents and version.
 */
#define NACRE_FOUND_REGION 2

/**
 * The value of a key or an attribute, or none.
 */
#define NACRE_FOUND_VALUE 3

/**
 * The object's fence.
 */
#define NACRE_FOUND_FENCE 4

/**
 * The version of a key.
 */
#define NACRE_FOUND_KEY_VERSION 5

/**
 * The size of a fork.
 */
#define NACRE_FOUND_SIZE 6

/**
 * The extent was written.
 */
#define NACRE_EXTENT_DATA 0

/**
 * The extent is a hole that a change left, and reads as zeros.
 */
#define NACRE_EXTENT_HOLE 1

/**
 * The presence of any value.
 */
#define NACRE_CHECK_PRESENT 0

/**
 * The absence of a value.
 */
#define NACRE_CHECK_ABSENT 1

/**
 * The value equals the given one.
 */
#define NACRE_CHECK_EQUAL 2

/**
 * The value, if any, differs from the given one.
 */
#define NACRE_CHECK_NOT_EQUAL 3

/**
 * The value is less than the given one. Values are compared bytewise, and a value that is not there is neither less nor greater.
 */
#define NACRE_CHECK_LESS 4

/**
 * The value is less than the given one, or equals it.
 */
#define NACRE_CHECK_LESS_OR_EQUAL 5

/**
 * The value is greater than the given one.
 */
#define NACRE_CHECK_GREATER 6

/**
 * The value is greater than the given one, or equals it.
 */
#define NACRE_CHECK_GREATER_OR_EQUAL 7

/**
 * The bytes are read to be looked at.
 */
#define NACRE_INTENT_LOOK 0

/**
 * The same range will be written soon, on condition that it did not change: a hint, by which the server may let writers take turns.
 */
#define NACRE_INTENT_UPDATE 1

/**
 * A datatype as MPI has them: bytes at displacements, with an extent. It never changes.
 */
typedef struct nacre_datatype nacre_datatype;

/**
 * Locked bytes of a file.
 */
typedef struct nacre_lock nacre_lock;

/**
 * An object of a store, and one of its forks: the default one, unless another was chosen.
 */
typedef struct nacre_object nacre_object;

/**
 * The bytes of a file that a lock covers.
 */
typedef struct nacre_pattern nacre_pattern;

/**
 * The result of a transaction, or a list.
 */
typedef struct nacre_result nacre_result;

/**
 * A store, or the store as a session or the holder of a lock uses it.
 */
typedef struct nacre_store nacre_store;

/**
 * Guards, reads and writes on one object, applied wholly or not at all.
 */
typedef struct nacre_transaction nacre_transaction;

/**
 * An object at a glance.
 */
typedef struct {
  /**
   * Not 0 if the object exists.
   */
  int exists;
  /**
   * The version of the last change, also if it removed the object; 0 if it never existed.
   */
  uint64_t version;
  /**
   * The least number of a session that passes, unless it is fenced by itself.
   */
  uint64_t fence;
  /**
   * The number of forks.
   */
  uint64_t forks;
  /**
   * The sum of their sizes in bytes.
   */
  uint64_t bytes;
  /**
   * The number of keys.
   */
  uint64_t keys;
  /**
   * The number of attributes.
   */
  uint64_t attributes;
} nacre_stat;

/**
 * A range of keys: those that meet all three conditions. A NULL pointer stands for no condition.
 */
typedef struct {
  /**
   * Keys must be greater than this one.
   */
  const void *after;
  /**
   * Its length in bytes.
   */
  size_t after_length;
  /**
   * Keys must be less than this one.
   */
  const void *before;
  /**
   * Its length in bytes.
   */
  size_t before_length;
  /**
   * Keys must begin with these bytes.
   */
  const void *prefix;
  /**
   * Their number.
   */
  size_t prefix_length;
} nacre_key_range;

/**
 * A range of bytes.
 */
typedef struct {
  /**
   * The offset of its first byte.
   */
  uint64_t offset;
  /**
   * Its length in bytes.
   */
  uint64_t length;
} nacre_region;

/**
 * A block of elements of an indexed datatype.
 */
typedef struct {
  /**
   * The number of elements.
   */
  uint64_t count;
  /**
   * The displacement of the first one: in extents of the element, or in bytes, as the constructor says.
   */
  int64_t displacement;
} nacre_block;

/**
 * A member of a struct.
 */
typedef struct {
  /**
   * The number of elements.
   */
  uint64_t count;
  /**
   * The displacement of the first one in bytes.
   */
  int64_t displacement;
  /**
   * The element.
   */
  nacre_datatype *of;
} nacre_member;

/**
 * One dimension of a distributed array.
 */
typedef struct {
  /**
   * The size of the array in elements.
   */
  uint64_t size;
  /**
   * NACRE_DISTRIBUTE_NONE, NACRE_DISTRIBUTE_BLOCK or NACRE_DISTRIBUTE_CYCLIC.
   */
  int distribution;
  /**
   * The number of elements in a block; 0 for the default.
   */
  uint64_t block;
  /**
   * The number of processes.
   */
  uint64_t processes;
} nacre_dimension;

/**
 * A guard that did not hold, and what stood there.
 */
typedef struct {
  /**
   * The number of the guard in the transaction, from 0.
   */
  size_t guard;
  /**
   * The kind of what was found: NACRE_FOUND_OBJECT and so on. A region and a value are told by the functions for answers, with NACRE_FOUND as their number.
   */
  int found;
  /**
   * For NACRE_FOUND_OBJECT: not 0 if the object exists.
   */
  int exists;
  /**
   * For NACRE_FOUND_FENCE the fence, for NACRE_FOUND_KEY_VERSION the key's version, for NACRE_FOUND_SIZE the fork's size in bytes.
   */
  uint64_t number;
  /**
   * The object's version.
   */
  uint64_t version;
} nacre_refusal;

/**
 * A range of a fork, as it stood.
 */
typedef struct {
  /**
   * The greatest version in the range.
   */
  uint64_t version;
  /**
   * The size of the fork in bytes; 0 if there is none.
   */
  uint64_t size;
  /**
   * Not 0 if the answer was cut, because it is of more than 16 MiB or 4,096 extents.
   */
  int is_cut;
  /**
   * The offset of the first byte that the answer does not cover, if it was cut.
   */
  uint64_t next;
} nacre_range;

/**
 * A maximal range of a fork that was written at one version.
 */
typedef struct {
  /**
   * The offset of its first byte.
   */
  uint64_t offset;
  /**
   * Its length in bytes.
   */
  uint64_t length;
  /**
   * Its version.
   */
  uint64_t version;
  /**
   * NACRE_EXTENT_DATA or NACRE_EXTENT_HOLE.
   */
  int kind;
} nacre_extent;

/**
 * An entry of a list: an object, a fork, a key or an attribute. The pointers are valid until the result is closed. Behind the
 * name and the value stands no zero.
 */
typedef struct {
  /**
   * The name.
   */
  const void *name;
  /**
   * Its length in bytes.
   */
  size_t name_length;
  /**
   * The value of a key or an attribute, empty if none was asked for; NULL for an object or a fork.
   */
  const void *value;
  /**
   * Its length in bytes.
   */
  size_t value_length;
  /**
   * The version of a key, where versions were asked for; else 0.
   */
  uint64_t version;
  /**
   * The size of a fork in bytes; else 0.
   */
  uint64_t size;
} nacre_entry;

/**
 * Bytes to be written at an offset.
 */
typedef struct {
  /**
   * The offset in bytes.
   */
  uint64_t offset;
  /**
   * The bytes.
   */
  const void *data;
  /**
   * Their number.
   */
  size_t length;
} nacre_piece;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the sentence of the calling thread's last failure: what was attempted, on what, and why it failed. UTF-8, empty if
 * nothing has failed. It is valid until the thread's next call that fails, and never NULL.
 */
const char *nacre_error_text(void);

/**
 * Returns a few words for a code, without the particulars of a failure. Valid for ever, and never NULL.
 */
const char *nacre_code_text(int code);

/**
 * Returns the version of the library as text, such as "0.1.0". Valid for ever.
 */
const char *nacre_version(void);

/**
 * Locks the bytes of a pattern in a file, all of it if the pattern is NULL. A file is named by 1 to 255 bytes of UTF-8; it is the object of
 * that name, which need not exist. `mode` is NACRE_LOCK_SHARED or NACRE_LOCK_EXCLUSIVE. Waits for bytes that others hold for `wait_ms`
 * milliseconds: not at all if it is 0, for ever if it is negative. NACRE_BUSY if others still hold some then, or a lock server was started
 * again and waits for its former clients.
 */
int nacre_lock_acquire(nacre_store *store,
                       const void *file,
                       size_t file_length,
                       nacre_pattern *pattern,
                       int mode,
                       int64_t wait_ms,
                       nacre_lock **lock);

/**
 * Stores the lock's fencing token: the number of its session, for nacre_store_for_session.
 */
int nacre_lock_token(nacre_lock *lock, uint64_t *token);

/**
 * Checks that a lock is held. NACRE_CLOSED if it is lost.
 */
int nacre_lock_check(nacre_lock *lock);

/**
 * Returns a handle on the store that acts under the lock: once the lock is lost or released, everything through it fails, and the store
 * refuses what is still under way. To be closed by nacre_store_close.
 */
int nacre_lock_store(nacre_lock *lock,
                     nacre_store **store);

/**
 * Releases a lock, and ends the handle in any case. NACRE_CLOSED if the lock was lost before: what was done under it may have failed.
 */
int nacre_lock_release(nacre_lock *lock);

/**
 * Returns a handle on an object, whether the object exists or not. A name is 1 to 255 bytes of any values.
 */
int nacre_object_open(nacre_store *store, const void *name, size_t name_length, nacre_object **object);

/**
 * Returns a handle on another fork of an object. A name is 0 to 255 bytes; the empty one is the default fork.
 */
int nacre_object_fork(nacre_object *object, const void *name, size_t name_length, nacre_object **fork);

/**
 * Ends a handle on an object. The object stays.
 */
int nacre_object_close(nacre_object *object);

/**
 * Reads at most 16 MiB into a buffer, as they stood at one moment. Stores their number, which is less than `length` where the fork ends,
 * and the version of the range, for nacre_object_write_if.
 */
int nacre_object_read(nacre_object *object,
                      uint64_t offset,
                      void *buffer,
                      size_t length,
                      size_t *count,
                      uint64_t *version);

/**
 * Writes at most 16 MiB, replacing what is there. Stores the version that the bytes carry.
 */
int nacre_object_write(nacre_object *object, uint64_t offset, const void *data, size_t length, uint64_t *version);

/**
 * Writes at most 16 MiB at the end of the fork, wherever that is. Stores the offset of the first byte, and the version of all of them;
 * either may be NULL.
 */
int nacre_object_append(nacre_object *object,
                        const void *data,
                        size_t length,
                        uint64_t *offset,
                        uint64_t *version);

/**
 * Writes at most 16 MiB if nothing in their range is newer than `expected`, and stores the version that they carry. NACRE_REFUSED if
 * something is newer: nothing was written. The version of the range as it stands is then stored in `version`, its bytes in `current`, which
 * has room for `length` bytes and may be where `data` is, and their number in `count`: less than `length` where the fork ends, and at most
 * 1 MiB. All three may be NULL.
 */
int nacre_object_write_if(nacre_object *object,
                          uint64_t offset,
                          const void *data,
                          size_t length,
                          uint64_t expected,
                          uint64_t *version,
                          void *current,
                          size_t *count);

/**
 * Makes a range read as zeros. Stores the version of that change.
 */
int nacre_object_zero(nacre_object *object, uint64_t offset, uint64_t length, uint64_t *version);

/**
 * Sets the size of the fork in bytes. Stores the version of that change.
 */
int nacre_object_truncate(nacre_object *object, uint64_t size, uint64_t *version);

/**
 * Removes the fork. Stores the version of that change.
 */
int nacre_object_remove_fork(nacre_object *object, uint64_t *version);

/**
 * Creates the object. NACRE_REFUSED if it exists.
 */
int nacre_object_create(nacre_object *object);

/**
 * Removes the object with its forks, keys and attributes. NACRE_ABSENT if it does not exist.
 */
int nacre_object_remove(nacre_object *object);

/**
 * Looks at the object as a whole. An object that does not exist is no failure: `exists` is 0.
 */
int nacre_object_stat(nacre_object *object, nacre_stat *stat);

/**
 * Returns the extents of a range with their versions, as answer 0.
 */
int nacre_object_extents(nacre_object *object, uint64_t offset, uint64_t length, nacre_result **result);

/**
 * Returns all forks with their names and sizes, as the entries of answer 0.
 */
int nacre_object_forks(nacre_object *object, nacre_result **result);

/**
 * Copies the value of a key into a buffer, and stores its length and its version. NACRE_TOO_SHORT if the value is longer than
 * `capacity`; NACRE_ABSENT if there is no such key: its version is 0 then.
 */
int nacre_object_key_get(nacre_object *object,
                         const void *key,
                         size_t key_length,
                         void *buffer,
                         size_t capacity,
                         size_t *length,
                         uint64_t *version);

/**
 * Sets a key. Stores its version.
 */
int nacre_object_key_set(nacre_object *object,
                         const void *key,
                         size_t key_length,
                         const void *value,
                         size_t value_length,
                         uint64_t *version);

/**
 * Sets a key if it is still of the version that was read; 0 stands for no such key. Stores its new version. NACRE_REFUSED if it is of
 * another one, which is stored instead.
 */
int nacre_object_key_set_if(nacre_object *object,
                            const void *key,
                            size_t key_length,
                            const void *value,
                            size_t value_length,
                            uint64_t expected,
                            uint64_t *version);

/**
 * Removes a key, if it is there. Stores the object's new version.
 */
int nacre_object_key_remove(nacre_object *object, const void *key, size_t key_length, uint64_t *version);

/**
 * Removes a key if it is still of the version that was read. Stores the object's new version. NACRE_REFUSED if it is of another one,
 * which is stored instead; 0 stands for no such key.
 */
int nacre_object_key_remove_if(nacre_object *object,
                               const void *key,
                               size_t key_length,
                               uint64_t expected,
                               uint64_t *version);

/**
 * Lists at most `limit` keys of a range and at most 1,024, in ascending order, with their versions, and their values if `values` is not 0. A NULL
 * range stands for all keys. They are the entries of answer 0.
 */
int nacre_object_keys(nacre_object *object,
                      const nacre_key_range *range,
                      uint32_t limit,
                      int values,
                      nacre_result **result);

/**
 * Copies an attribute into a buffer, and stores its length. NACRE_TOO_SHORT if it is longer than `capacity`; NACRE_ABSENT if there is none.
 */
int nacre_object_attribute_get(nacre_object *object,
                               const void *name,
                               size_t name_length,
                               void *buffer,
                               size_t capacity,
                               size_t *length);

/**
 * Sets an attribute. Stores the object's new version.
 */
int nacre_object_attribute_set(nacre_object *object,
                               const void *name,
                               size_t name_length,
                               const void *value,
                               size_t value_length,
                               uint64_t *version);

/**
 * Removes an attribute, if it is there. Stores the object's new version.
 */
int nacre_object_attribute_remove(nacre_object *object, const void *name, size_t name_length, uint64_t *version);

/**
 * Returns all attributes with their values, as the entries of answer 0.
 */
int nacre_object_attributes(nacre_object *object, nacre_result **result);

/**
 * Describes one range of bytes.
 */
int nacre_pattern_range(uint64_t offset, uint64_t length, nacre_pattern **pattern);

/**
 * Describes ranges of bytes, in any order: at most 2^18.
 */
int nacre_pattern_list(const nacre_region *regions, size_t count, nacre_pattern **pattern);

/**
 * Describes what a text says, such as "vector(count=1024, block=1, stride=4, of=bytes(8))": see docs/lock.md.
 */
int nacre_pattern_parse(const char *text, nacre_pattern **pattern);

/**
 * Describes copies of a datatype over a file, one after the other at the distance of its extent; the displacement 0 of the first one is at the
 * offset `displacement`.
 */
int nacre_pattern_datatype(nacre_datatype *datatype,
                           uint64_t displacement,
                           uint64_t count,
                           nacre_pattern **pattern);

/**
 * Checks that a pattern can be locked: that it lies within a file, and is not too irregular. nacre_lock_acquire does so too.
 */
int nacre_pattern_check(nacre_pattern *pattern);

/**
 * Copies a pattern as text into a buffer, with a zero behind it, and stores the length without that. NACRE_TOO_SHORT if it does not fit.
 */
int nacre_pattern_text(nacre_pattern *pattern,
                       char *buffer,
                       size_t capacity,
                       size_t *length);

/**
 * Ends a pattern.
 */
int nacre_pattern_close(nacre_pattern *pattern);

/**
 * Makes a datatype of so many bytes in a row.
 */
int nacre_datatype_bytes(uint64_t count, nacre_datatype **datatype);

/**
 * Makes a datatype of elements in a row (MPI_Type_contiguous).
 */
int nacre_datatype_contiguous(nacre_datatype *of, uint64_t count, nacre_datatype **datatype);

/**
 * Makes a datatype of `count` blocks of elements, whose stride is counted in extents of the element (MPI_Type_vector).
 */
int nacre_datatype_vector(nacre_datatype *of,
                          uint64_t count,
                          uint64_t block,
                          int64_t stride,
                          nacre_datatype **datatype);

/**
 * Makes a datatype of `count` blocks of elements, whose stride is in bytes (MPI_Type_create_hvector).
 */
int nacre_datatype_hvector(nacre_datatype *of,
                           uint64_t count,
                           uint64_t block,
                           int64_t stride,
                           nacre_datatype **datatype);

/**
 * Makes a datatype of blocks of elements, whose displacements are in extents of the element (MPI_Type_indexed).
 */
int nacre_datatype_indexed(nacre_datatype *of, const nacre_block *blocks, size_t count, nacre_datatype **datatype);

/**
 * Makes a datatype of blocks of elements, whose displacements are in bytes (MPI_Type_create_hindexed).
 */
int nacre_datatype_hindexed(nacre_datatype *of, const nacre_block *blocks, size_t count, nacre_datatype **datatype);

/**
 * Makes a datatype of blocks of one length, whose displacements are in extents of the element (MPI_Type_create_indexed_block).
 */
int nacre_datatype_indexed_block(nacre_datatype *of,
                                 uint64_t block,
                                 const int64_t *displacements,
                                 size_t count,
                                 nacre_datatype **datatype);

/**
 * Makes a datatype of blocks of one length, whose displacements are in bytes (MPI_Type_create_hindexed_block).
 */
int nacre_datatype_hindexed_block(nacre_datatype *of,
                                  uint64_t block,
                                  const int64_t *displacements,
                                  size_t count,
                                  nacre_datatype **datatype);

/**
 * Makes a datatype of elements of several types, whose displacements are in bytes (MPI_Type_create_struct).
 */
int nacre_datatype_struct(const nacre_member *members, size_t count, nacre_datatype **datatype);

/**
 * Makes a datatype of a part of an array; its extent is that of the whole array (MPI_Type_create_subarray). Each array has an element for each
 * dimension.
 */
int nacre_datatype_subarray(nacre_datatype *of,
                            size_t dimensions,
                            const uint64_t *sizes,
                            const uint64_t *subsizes,
                            const uint64_t *starts,
                            int order,
                            nacre_datatype **datatype);

/**
 * Makes a datatype of the part of a distributed array that is the process `rank`'s (MPI_Type_create_darray).
 */
int nacre_datatype_darray(nacre_datatype *of,
                          uint64_t rank,
                          const nacre_dimension *dimensions,
                          size_t count,
                          int order,
                          nacre_datatype **datatype);

/**
 * Makes a datatype with other bounds, in bytes (MPI_Type_create_resized).
 */
int nacre_datatype_resized(nacre_datatype *of, int64_t lower_bound, int64_t extent, nacre_datatype **datatype);

/**
 * Ends a datatype. What was built of it stays.
 */
int nacre_datatype_close(nacre_datatype *datatype);

/**
 * Ends a result, and all pointers that came from it.
 */
int nacre_result_close(nacre_result *result);

/**
 * Stores the object's version: its new one after a transaction that changed something, else the one that it had. 0 for lists.
 */
int nacre_result_version(nacre_result *result,
                         uint64_t *version);

/**
 * Stores whether the object existed before the transaction: not 0 if it did. Of a refusal nothing is known but what was found.
 */
int nacre_result_existed(nacre_result *result,
                         int *existed);

/**
 * Stores the number of answers, which have the numbers of their reads, from 0; none if the transaction was refused.
 */
int nacre_result_count(nacre_result *result, size_t *count);

/**
 * Stores which guard did not hold, and what was found. NACRE_ABSENT if all held.
 */
int nacre_result_refusal(nacre_result *result, nacre_refusal *refusal);

/**
 * Stores where the bytes of an answer are, and their number: those of a range, or the value of a key or an attribute. NACRE_ABSENT if
 * there is no such key or attribute. They are valid until the result is closed.
 */
int nacre_result_data(nacre_result *result,
                      size_t number,
                      const void **data,
                      size_t *length);

/**
 * Stores the version of a key that was read with its version; 0 if there is no such key.
 */
int nacre_result_key_version(nacre_result *result, size_t number, uint64_t *version);

/**
 * Stores the version of a range, the size of its fork, and whether the answer was cut.
 */
int nacre_result_range(nacre_result *result, size_t number, nacre_range *range);

/**
 * Stores where the extents of a range are, and their number. They are valid until the result is closed.
 */
int nacre_result_extents(nacre_result *result, size_t number, const nacre_extent **extents, size_t *count);

/**
 * Stores an answer to nacre_transaction_read_stat.
 */
int nacre_result_stat(nacre_result *result, size_t number, nacre_stat *stat);

/**
 * Stores where the entries of a list are, their number, and in `more`, which may be NULL, whether further ones follow the last: not 0 if there may
 * be some. They are valid until the result is closed.
 */
int nacre_result_entries(nacre_result *result,
                         size_t number,
                         const nacre_entry **entries,
                         size_t *count,
                         int *more);

/**
 * Stores the object's fence, where its fenced sessions are, in ascending order, and their number. They are valid until the result is closed.
 */
int nacre_result_fences(nacre_result *result,
                        size_t number,
                        uint64_t *fence,
                        const uint64_t **sessions,
                        size_t *count);

/**
 * Opens a store: "file:PATH", "file:PATH?create=yes", "mem:", "nacre://HOST:PORT,...", "unix:PATH" or "rados://POOL". Servers are
 * connected when they are first needed.
 */
int nacre_open(const char *uri,
               nacre_store **store);

/**
 * Connects to the servers now, if the store has any. NACRE_UNAVAILABLE if none of them can be reached.
 */
int nacre_store_connect(nacre_store *store);

/**
 * Closes a store, and ends the handle in any case. The first handle, that of nacre_open, closes the store itself: its locks are
 * released, and calls with other handles that came from it return NACRE_CLOSED. They are to be closed all the same.
 */
int nacre_store_close(nacre_store *store);

/**
 * Returns a handle on the store that acts for one session: its changes fail as NACRE_DENIED where the session is fenced.
 */
int nacre_store_for_session(nacre_store *store,
                            uint64_t session,
                            nacre_store **handle);

/**
 * Lists the objects that exist, in ascending order of their names: at most `limit` and 1,024, from the first one after `after`. With NULL for
 * `after`, from the first of all. The names are the entries of answer 0.
 */
int nacre_store_list(nacre_store *store,
                     const void *after,
                     size_t after_length,
                     size_t limit,
                     nacre_result **result);

/**
 * Ends the lock session of the store: all its locks are released, and those that wait are not granted. The next lock begins another one.
 */
int nacre_store_end_locks(nacre_store *store);

/**
 * Makes an empty transaction.
 */
int nacre_transaction_new(nacre_transaction **transaction);

/**
 * Ends a transaction.
 */
int nacre_transaction_close(nacre_transaction *transaction);

/**
 * Applies a transaction to an object: wholly, or not at all. It can be applied again. NACRE_REFUSED if a guard does not hold; the result
 * tells which, and what stood there. `result` may be NULL.
 */
int nacre_transaction_apply(nacre_transaction *transaction,
                            nacre_object *object,
                            nacre_result **result);

/**
 * Guards: the object exists.
 */
int nacre_transaction_if_exists(nacre_transaction *transaction);

/**
 * Guards: the object does not exist.
 */
int nacre_transaction_if_absent(nacre_transaction *transaction);

/**
 * Guards: nothing in a range of a fork is newer than `version`. This is the conditional write.
 */
int nacre_transaction_if_region(nacre_transaction *transaction,
                                const void *fork,
                                size_t fork_length,
                                uint64_t offset,
                                uint64_t length,
                                uint64_t version);

/**
 * Guards: `version`, at most 2^62, is greater than that of the range. The transaction is stamped with the greater of it and the object's next version.
 */
int nacre_transaction_if_proposal(nacre_transaction *transaction,
                                  const void *fork,
                                  size_t fork_length,
                                  uint64_t offset,
                                  uint64_t length,
                                  uint64_t version);

/**
 * Guards: the value of a key passes a check (NACRE_CHECK_EQUAL and so on).
 */
int nacre_transaction_if_key(nacre_transaction *transaction,
                             const void *key,
                             size_t key_length,
                             int check,
                             const void *value,
                             size_t value_length);

/**
 * Guards: an attribute passes a check (NACRE_CHECK_EQUAL and so on).
 */
int nacre_transaction_if_attribute(nacre_transaction *transaction,
                                   const void *name,
                                   size_t name_length,
                                   int check,
                                   const void *value,
                                   size_t value_length);

/**
 * Guards: the object's version is `version`; 0 for one that never existed.
 */
int nacre_transaction_if_version(nacre_transaction *transaction, uint64_t version);

/**
 * Guards: a key is of the version that was read; 0 stands for no such key.
 */
int nacre_transaction_if_key_version(nacre_transaction *transaction,
                                     const void *key,
                                     size_t key_length,
                                     uint64_t version);

/**
 * Guards: a fork is `size` bytes long; one that does not exist is 0 bytes long.
 */
int nacre_transaction_if_size(nacre_transaction *transaction, const void *fork, size_t fork_length, uint64_t size);

/**
 * Guards: the session of this number is not fenced.
 */
int nacre_transaction_if_fence(nacre_transaction *transaction, uint64_t session);

/**
 * Reads bytes of a range, with its extents and its version. `intent` is NACRE_INTENT_LOOK or NACRE_INTENT_UPDATE.
 */
int nacre_transaction_read_range(nacre_transaction *transaction,
                                 const void *fork,
                                 size_t fork_length,
                                 uint64_t offset,
                                 uint64_t length,
                                 int intent);

/**
 * Reads the extents and the version of a range, without the bytes.
 */
int nacre_transaction_read_extents(nacre_transaction *transaction,
                                   const void *fork,
                                   size_t fork_length,
                                   uint64_t offset,
                                   uint64_t length);

/**
 * Reads the object at a glance.
 */
int nacre_transaction_read_stat(nacre_transaction *transaction);

/**
 * Reads at most `limit` names of forks with their sizes and at most 1,024, after the fork `after`; from the first one if that is NULL. Forks of names that
 * begin with "nacre." are Nacre's own.
 */
int nacre_transaction_read_forks(nacre_transaction *transaction,
                                 const void *after,
                                 size_t after_length,
                                 uint32_t limit);

/**
 * Reads the value of a key.
 */
int nacre_transaction_read_key(nacre_transaction *transaction, const void *key, size_t key_length);

/**
 * Reads at most `limit` keys of a range and at most 1,024, with their values if `values` is not 0. A NULL range stands for all keys.
 */
int nacre_transaction_read_keys(nacre_transaction *transaction,
                                const nacre_key_range *range,
                                uint32_t limit,
                                int values);

/**
 * Reads an attribute.
 */
int nacre_transaction_read_attribute(nacre_transaction *transaction, const void *name, size_t name_length);

/**
 * Reads all attributes with their values.
 */
int nacre_transaction_read_attributes(nacre_transaction *transaction);

/**
 * Reads the value of a key with its version.
 */
int nacre_transaction_read_versioned_key(nacre_transaction *transaction, const void *key, size_t key_length);

/**
 * Reads keys as nacre_transaction_read_keys does, with their versions.
 */
int nacre_transaction_read_versioned_keys(nacre_transaction *transaction,
                                          const nacre_key_range *range,
                                          uint32_t limit,
                                          int values);

/**
 * Reads the object's fence and its fenced sessions.
 */
int nacre_transaction_read_fences(nacre_transaction *transaction);

/**
 * Makes the object exist. So does every other change but nacre_transaction_remove.
 */
int nacre_transaction_create(nacre_transaction *transaction);

/**
 * Writes bytes at an offset.
 */
int nacre_transaction_write(nacre_transaction *transaction,
                            const void *fork,
                            size_t fork_length,
                            uint64_t offset,
                            const void *data,
                            size_t length);

/**
 * Writes up to 65,536 pieces of a fork, in order: one operation of the 4,096 that a transaction may have.
 */
int nacre_transaction_write_pieces(nacre_transaction *transaction,
                                   const void *fork,
                                   size_t fork_length,
                                   const nacre_piece *pieces,
                                   size_t count);

/**
 * Writes bytes at the end of a fork. A read of its extents in the same transaction shows its size before, which is where they begin.
 */
int nacre_transaction_append(nacre_transaction *transaction,
                             const void *fork,
                             size_t fork_length,
                             const void *data,
                             size_t length);

/**
 * Makes a range read as zeros; neither makes a fork nor changes its size.
 */
int nacre_transaction_zero(nacre_transaction *transaction,
                           const void *fork,
                           size_t fork_length,
                           uint64_t offset,
                           uint64_t length);

/**
 * Sets the size of a fork in bytes, and creates it if there is none.
 */
int nacre_transaction_truncate(nacre_transaction *transaction, const void *fork, size_t fork_length, uint64_t size);

/**
 * Removes a fork.
 */
int nacre_transaction_remove_fork(nacre_transaction *transaction, const void *fork, size_t fork_length);

/**
 * Replaces the content of a fork with that of `from`, another one, which is removed.
 */
int nacre_transaction_replace_fork(nacre_transaction *transaction,
                                   const void *fork,
                                   size_t fork_length,
                                   const void *from,
                                   size_t from_length);

/**
 * Sets a key.
 */
int nacre_transaction_set_key(nacre_transaction *transaction,
                              const void *key,
                              size_t key_length,
                              const void *value,
                              size_t value_length);

/**
 * Removes a key, if it is there.
 */
int nacre_transaction_remove_key(nacre_transaction *transaction, const void *key, size_t key_length);

/**
 * Sets an attribute.
 */
int nacre_transaction_set_attribute(nacre_transaction *transaction,
                                    const void *name,
                                    size_t name_length,
                                    const void *value,
                                    size_t value_length);

/**
 * Removes an attribute, if it is there.
 */
int nacre_transaction_remove_attribute(nacre_transaction *transaction, const void *name, size_t name_length);

/**
 * Fences all sessions whose numbers are less than `least`.
 */
int nacre_transaction_raise_fence(nacre_transaction *transaction, uint64_t least);

/**
 * Fences one session: its changes of this object are refused from now on.
 */
int nacre_transaction_fence_session(nacre_transaction *transaction, uint64_t session);

/**
 * Removes the object with its forks, keys and attributes. Its version and its fences stay.
 */
int nacre_transaction_remove(nacre_transaction *transaction);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NACRE_H */
