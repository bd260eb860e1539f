/* Every kind of access to a file in atomic mode, by two ranks or more, compared with what the same calls are to do: views of several kinds,
 * pointers, counts, statuses, ends of files.
 *
 *   access FILE
 *
 * Prints "all as it should be" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        int code = (call);                                                                              \
        if (code != MPI_SUCCESS) {                                                                      \
            char text[MPI_MAX_ERROR_STRING];                                                            \
            int length;                                                                                 \
            MPI_Error_string(code, text, &length);                                                      \
            fprintf(stderr, "line %d, rank %d: %s: %s\n", __LINE__, rank, #call, text);                 \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                               \
        }                                                                                               \
    } while (0)

#define EXPECT(condition)                                                                               \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "line %d, rank %d: not so: %s\n", __LINE__, rank, #condition);              \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                               \
        }                                                                                               \
    } while (0)

static int count_of(MPI_Status *status, MPI_Datatype type) {
    int count = -1;
    MPI_Get_count(status, type, &count);
    return count;
}

enum { BLOCK = 16, PIECES = 40, BYTES = BLOCK * PIECES };

/* The byte that a rank writes at a place in its data, in a round. */
static char byte_of(int of, int at, int round) { return (char)(of * 31 + at * 7 + round * 13); }

static void fill(char *data, int of, int round) {
    for (int at = 0; at < BYTES; at++) data[at] = byte_of(of, at, round);
}

static void expect_interleaved(const char *path, MPI_Offset from, int round) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *plain = fopen(path, "rb");
        EXPECT(plain && !fseek(plain, from, SEEK_SET));
        for (int piece = 0; piece < PIECES; piece++)
            for (int of = 0; of < size; of++)
                for (int byte = 0; byte < BLOCK; byte++) {
                    int found = fgetc(plain);
                    EXPECT(found != EOF && (char)found == byte_of(of, piece * BLOCK + byte, round));
                }
        fclose(plain);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* All ranks write their parts of an interleaved file, by every call that can. */
static void interleaved(MPI_File file, const char *path, MPI_Offset displacement) {
    MPI_Datatype vector, view;
    CHECK(MPI_Type_vector(PIECES, BLOCK, BLOCK * size, MPI_BYTE, &vector));
    CHECK(MPI_Type_create_resized(vector, 0, (MPI_Aint)BLOCK * size * PIECES, &view));
    CHECK(MPI_Type_commit(&view));
    CHECK(MPI_File_set_view(file, displacement + rank * BLOCK, MPI_INT, view, "native", MPI_INFO_NULL));
    char data[BYTES], back[BYTES];
    MPI_Status status;
    MPI_Request request;
    for (int round = 0; round < 10; round++) {
        MPI_Offset at;
        fill(data, rank, round);
        CHECK(MPI_File_seek(file, 0, MPI_SEEK_SET));
        int half = BYTES / 8, rest = BYTES / 4 - half;
        switch (round) {
        case 0: CHECK(MPI_File_write_at(file, 0, data, BYTES / 4, MPI_INT, &status)); break;
        case 1: CHECK(MPI_File_write_at_all(file, 0, data, BYTES / 4, MPI_INT, &status)); break;
        case 2: CHECK(MPI_File_write_all(file, data, BYTES / 4, MPI_INT, &status)); break;
        case 3: /* in two parts, which begin and end within file types */
            CHECK(MPI_File_write(file, data, half, MPI_INT, &status));
            EXPECT(count_of(&status, MPI_INT) == half);
            CHECK(MPI_File_get_position(file, &at));
            EXPECT(at == half);
            CHECK(MPI_File_write(file, data + 4 * half, rest, MPI_INT, MPI_STATUS_IGNORE));
            CHECK(MPI_File_get_position(file, &at));
            EXPECT(at == BYTES / 4);
            break;
        case 4:
            CHECK(MPI_File_iwrite_at(file, half, data + 4 * half, rest, MPI_INT, &request));
            CHECK(MPI_Wait(&request, &status));
            CHECK(MPI_File_iwrite(file, data, half, MPI_INT, &request));
            CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            CHECK(MPI_File_get_position(file, &at));
            EXPECT(at == half);
            break;
        case 5:
            CHECK(MPI_File_iwrite_all(file, data, BYTES / 4, MPI_INT, &request));
            CHECK(MPI_Wait(&request, &status));
            break;
        case 6:
            CHECK(MPI_File_write_all_begin(file, data, BYTES / 4, MPI_INT));
            CHECK(MPI_File_write_all_end(file, data, &status));
            break;
        case 7:
            CHECK(MPI_File_write_at_all_begin(file, 0, data, BYTES / 4, MPI_INT));
            CHECK(MPI_File_write_at_all_end(file, data, &status));
            break;
        case 8: { /* not in a row in memory */
            char spread[2 * BYTES];
            MPI_Datatype pairs;
            for (int word = 0; word < BYTES / 4; word++) memcpy(spread + 8 * word, data + 4 * word, 4);
            CHECK(MPI_Type_vector(BYTES / 4, 1, 2, MPI_INT, &pairs));
            CHECK(MPI_Type_commit(&pairs));
            CHECK(MPI_File_write_at(file, 0, spread, 1, pairs, &status));
            CHECK(MPI_Type_free(&pairs));
            break;
        }
        default: /* only some of the ranks have something to write */
            if (rank % 2 == 0) CHECK(MPI_File_write_at_all(file, 0, data, BYTES / 4, MPI_INT, &status));
            else {
                CHECK(MPI_File_write_at_all(file, 0, data, 0, MPI_INT, &status));
                EXPECT(count_of(&status, MPI_BYTE) == 0);
                CHECK(MPI_File_write_at(file, 0, data, BYTES / 4, MPI_INT, &status));
            }
        }
        if (round != 3 && round != 4) EXPECT(count_of(&status, MPI_BYTE) == BYTES);
        expect_interleaved(path, displacement, round);
        memset(back, 0, BYTES);
        CHECK(MPI_File_seek(file, 0, MPI_SEEK_SET));
        switch (round) {
        case 0: CHECK(MPI_File_read_at(file, 0, back, BYTES / 4, MPI_INT, &status)); break;
        case 1: CHECK(MPI_File_read_at_all(file, 0, back, BYTES / 4, MPI_INT, &status)); break;
        case 2: CHECK(MPI_File_read_all(file, back, BYTES / 4, MPI_INT, &status)); break;
        case 3: CHECK(MPI_File_read(file, back, BYTES / 4, MPI_INT, &status)); break;
        case 4:
            CHECK(MPI_File_iread(file, back, BYTES / 4, MPI_INT, &request));
            CHECK(MPI_Wait(&request, &status));
            break;
        case 5:
            CHECK(MPI_File_iread_at_all(file, 0, back, BYTES / 4, MPI_INT, &request));
            CHECK(MPI_Wait(&request, &status));
            break;
        case 6:
            CHECK(MPI_File_read_all_begin(file, back, BYTES / 4, MPI_INT));
            CHECK(MPI_File_read_all_end(file, back, &status));
            break;
        case 7:
            CHECK(MPI_File_read_at_all_begin(file, 0, back, BYTES / 4, MPI_INT));
            CHECK(MPI_File_read_at_all_end(file, back, &status));
            break;
        default:
            CHECK(MPI_File_iread_at(file, 0, back, BYTES / 4, MPI_INT, &request));
            CHECK(MPI_Wait(&request, &status));
        }
        EXPECT(count_of(&status, MPI_BYTE) == BYTES);
        EXPECT(!memcmp(data, back, BYTES));
        /* nobody writes while others still read */
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK(MPI_Type_free(&vector));
    CHECK(MPI_Type_free(&view));
}

/* A box of an array for each rank, and the same by a distribution. */
static void arrays(MPI_File file) {
    enum { SIDE = 12 };
    int sizes[2] = {SIDE, SIDE * size}, subsizes[2] = {SIDE, SIDE}, starts[2] = {0, SIDE * rank};
    int mine[SIDE * SIDE], back[SIDE * SIDE];
    for (int item = 0; item < SIDE * SIDE; item++) mine[item] = rank * 1000 + item;
    for (int kind = 0; kind < 2; kind++) {
        MPI_Datatype view;
        int distributions[2] = {MPI_DISTRIBUTE_NONE, MPI_DISTRIBUTE_BLOCK};
        int arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG}, processes[2] = {1, size};
        if (kind == 0) CHECK(MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_INT, &view));
        else
            CHECK(MPI_Type_create_darray(size, rank, 2, sizes, distributions, arguments, processes, MPI_ORDER_C,
                                         MPI_INT, &view));
        CHECK(MPI_Type_commit(&view));
        CHECK(MPI_File_set_view(file, 0, MPI_INT, view, "native", MPI_INFO_NULL));
        for (int item = 0; item < SIDE * SIDE; item++) mine[item] += 100000;
        CHECK(MPI_File_write_at(file, 0, mine, SIDE * SIDE, MPI_INT, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(MPI_File_read_at_all(file, 0, back, SIDE * SIDE, MPI_INT, MPI_STATUS_IGNORE));
        EXPECT(!memcmp(mine, back, sizeof mine));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(MPI_Type_free(&view));
    }
    /* rank 0 reads the whole array as it stands in the file */
    CHECK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    int *all = malloc(sizeof mine * size);
    CHECK(MPI_File_read_at(file, 0, all, SIDE * SIDE * size, MPI_INT, MPI_STATUS_IGNORE));
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE * size; column++)
            EXPECT(all[row * SIDE * size + column] == column / SIDE * 1000 + row * SIDE + column % SIDE + 200000);
    free(all);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A file type of every constructor, or none when there are no more. */
static MPI_Datatype constructed(int which) {
    int counts[3] = {2, 1, 3}, places[3] = {0, 4, 8}, singles[3] = {1, 5, 9};
    MPI_Aint bytes[3] = {4, 20, 64};
    MPI_Datatype parts[3] = {MPI_INT, MPI_DOUBLE, MPI_CHAR}, inner, type = MPI_DATATYPE_NULL;
    switch (which) {
    case 0: CHECK(MPI_Type_indexed(3, counts, places, MPI_INT, &type)); break;
    case 1: CHECK(MPI_Type_create_hindexed(3, counts, bytes, MPI_INT, &type)); break;
    case 2: CHECK(MPI_Type_create_indexed_block(3, 2, singles, MPI_INT, &type)); break;
    case 3: CHECK(MPI_Type_create_hindexed_block(3, 2, bytes, MPI_INT, &type)); break;
    case 4: CHECK(MPI_Type_create_struct(3, counts, bytes, parts, &type)); break;
    case 5: CHECK(MPI_Type_create_hvector(3, 2, 24, MPI_INT, &type)); break;
    case 6: /* a pair, whose bytes are not in a row */
        CHECK(MPI_Type_vector(3, 1, 2, MPI_DOUBLE_INT, &type));
        break;
    case 7:
        CHECK(MPI_Type_vector(3, 2, 3, MPI_SHORT, &inner));
        CHECK(MPI_Type_vector(2, 2, 5, inner, &type));
        CHECK(MPI_Type_free(&inner));
        break;
    case 8:
        CHECK(MPI_Type_vector(4, 1, 2, MPI_INT, &inner));
        CHECK(MPI_Type_dup(inner, &type));
        CHECK(MPI_Type_free(&inner));
        break;
    case 9: /* deeper than is described */
        CHECK(MPI_Type_vector(2, 1, 2, MPI_INT, &type));
        for (int depth = 0; depth < 80; depth++) {
            MPI_Aint lower, extent;
            CHECK(MPI_Type_get_extent(type, &lower, &extent));
            CHECK(MPI_Type_create_resized(type, 0, extent + 1, &inner));
            CHECK(MPI_Type_free(&type));
            type = inner;
        }
        break;
    default: break;
    }
    return type;
}

/* What is written through a view is where the MPI library reads it through the same view, and nowhere else. */
static void constructors(MPI_File file, const char *path) {
    enum { ROOM = 4096 };
    static char area[ROOM], data[ROOM], back[ROOM];
    MPI_File plain;
    MPI_Datatype view;
    CHECK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &plain));
    MPI_Offset start = (MPI_Offset)ROOM * rank;
    for (int which = 0; (view = constructed(which)) != MPI_DATATYPE_NULL; which++) {
        int size_of_view;
        CHECK(MPI_Type_commit(&view));
        CHECK(MPI_Type_size(view, &size_of_view));
        int skipped = size_of_view / 3, bytes = 2 * size_of_view + size_of_view / 2;
        memset(area, 0, ROOM);
        CHECK(MPI_File_set_view(plain, start, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        CHECK(MPI_File_write_at(plain, 0, area, ROOM, MPI_BYTE, MPI_STATUS_IGNORE));
        for (int byte = 0; byte < bytes; byte++) data[byte] = 1 + (byte + which) % 100;
        CHECK(MPI_File_set_view(file, start, MPI_BYTE, view, "native", MPI_INFO_NULL));
        CHECK(MPI_File_write_at(file, skipped, data, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(MPI_File_read_at(plain, 0, area, ROOM, MPI_BYTE, MPI_STATUS_IGNORE));
        int written = 0;
        for (int byte = 0; byte < ROOM; byte++) written += area[byte] != 0;
        EXPECT(written == bytes);
        CHECK(MPI_File_set_view(plain, start, MPI_BYTE, view, "native", MPI_INFO_NULL));
        CHECK(MPI_File_read_at(plain, skipped, back, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        if (memcmp(data, back, bytes)) fprintf(stderr, "by constructor %d:\n", which);
        EXPECT(!memcmp(data, back, bytes));
        CHECK(MPI_Type_free(&view));
    }
    CHECK(MPI_File_close(&plain));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The shared pointer gives every rank a place of its own. */
static void shared(MPI_File file, const char *path) {
    MPI_Status status;
    MPI_Request request;
    CHECK(MPI_File_set_size(file, 0));
    CHECK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    CHECK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    int record[4] = {rank, rank, rank, rank};
    CHECK(MPI_File_write_shared(file, record, 4, MPI_INT, &status));
    EXPECT(count_of(&status, MPI_INT) == 4);
    CHECK(MPI_File_iwrite_shared(file, record, 4, MPI_INT, &request));
    CHECK(MPI_Wait(&request, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_File_write_ordered(file, record, 4, MPI_INT, &status));
    CHECK(MPI_File_write_ordered_begin(file, record, 4, MPI_INT));
    CHECK(MPI_File_write_ordered_end(file, record, &status));
    EXPECT(count_of(&status, MPI_INT) == 4);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *plain = fopen(path, "rb");
        int *times = calloc(size, sizeof(int)), found[4];
        for (int place = 0; place < 4 * size; place++) {
            EXPECT(fread(found, sizeof found, 1, plain) == 1);
            EXPECT(found[0] >= 0 && found[0] < size);
            for (int word = 0; word < 4; word++) EXPECT(found[word] == found[0]);
            times[found[0]]++;
            if (place >= 2 * size) EXPECT(found[0] == place % size);
        }
        for (int of = 0; of < size; of++) EXPECT(times[of] == 4);
        EXPECT(fgetc(plain) == EOF);
        fclose(plain);
        free(times);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_File_seek_shared(file, 2 * size * 4, MPI_SEEK_SET));
    CHECK(MPI_File_read_ordered(file, record, 4, MPI_INT, &status));
    EXPECT(record[0] == rank && record[3] == rank);
    CHECK(MPI_File_read_shared(file, record, 4, MPI_INT, &status));
    EXPECT(record[0] >= 0 && record[0] < size && record[3] == record[0]);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The individual pointer, in and out of atomic mode. */
static void pointers(MPI_File file) {
    MPI_Offset at;
    MPI_Datatype pairs;
    int words[8] = {0}, back[8];
    CHECK(MPI_Type_vector(2, 1, 2, MPI_INT, &pairs));
    CHECK(MPI_Type_commit(&pairs));
    CHECK(MPI_File_set_view(file, 1000 * rank, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    CHECK(MPI_File_get_position(file, &at));
    EXPECT(at == 0);
    for (int word = 0; word < 8; word++) words[word] = 100 * rank + word;
    CHECK(MPI_File_write(file, words, 3, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(MPI_File_seek(file, 1, MPI_SEEK_CUR));
    CHECK(MPI_File_get_position(file, &at));
    EXPECT(at == 4);
    EXPECT(MPI_File_seek(file, -9, MPI_SEEK_CUR) != MPI_SUCCESS);
    CHECK(MPI_File_get_position(file, &at));
    EXPECT(at == 4);
    CHECK(MPI_File_seek(file, -1, MPI_SEEK_CUR));
    /* What the other mode leaves is where this one goes on, and the other way round. */
    CHECK(MPI_File_set_atomicity(file, 0));
    CHECK(MPI_File_get_position(file, &at));
    EXPECT(at == 3);
    CHECK(MPI_File_write(file, words + 3, 2, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(MPI_File_set_atomicity(file, 1));
    CHECK(MPI_File_write(file, words + 5, 3, MPI_INT, MPI_STATUS_IGNORE));
    memset(back, 0, sizeof back);
    CHECK(MPI_File_read_at(file, 0, back, 8, MPI_INT, MPI_STATUS_IGNORE));
    EXPECT(!memcmp(words, back, sizeof back));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_File_set_size(file, 1000 * (size - 1) + 32));
    CHECK(MPI_File_seek(file, -4, MPI_SEEK_END));
    CHECK(MPI_File_get_position(file, &at));
    EXPECT(at == 250 * (size - 1 - rank) + 4);
    /* Elements that are not in a row in memory, of which the last are behind the end. */
    if (rank == size - 1) {
        MPI_Status status;
        for (int word = 0; word < 8; word++) back[word] = -1;
        CHECK(MPI_File_read_at(file, 5, back, 2, pairs, &status));
        EXPECT(count_of(&status, MPI_BYTE) == 12);
        EXPECT(back[0] == words[5] && back[1] == -1 && back[2] == words[6] && back[3] == words[7] && back[5] == -1);
        /* The error of a status is of no concern to a call that returns one status. */
        status.MPI_ERROR = 12345;
        CHECK(MPI_File_read_at(file, 0, back, 1, MPI_INT, &status));
        EXPECT(status.MPI_ERROR == 12345);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_Type_free(&pairs));
}

/* What lies behind the end is not read, and says so. */
static void ends(MPI_File file) {
    MPI_Status status;
    char data[100];
    memset(data, 'x', sizeof data);
    CHECK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CHECK(MPI_File_set_size(file, 60));
    MPI_Offset bytes;
    CHECK(MPI_File_get_size(file, &bytes));
    EXPECT(bytes == 60);
    CHECK(MPI_File_read_at(file, 10, data, 100, MPI_BYTE, &status));
    EXPECT(count_of(&status, MPI_BYTE) == 50);
    CHECK(MPI_File_read_at(file, 70, data, 10, MPI_BYTE, &status));
    EXPECT(count_of(&status, MPI_BYTE) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    /* What is written behind the end is there at once, in the other mode too. */
    if (rank == 0) CHECK(MPI_File_write_at(file, 500, data, 100, MPI_BYTE, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_File_get_size(file, &bytes));
    EXPECT(bytes == 600);
    CHECK(MPI_File_set_atomicity(file, 0));
    CHECK(MPI_File_get_size(file, &bytes));
    EXPECT(bytes == 600);
    memset(data, 0, sizeof data);
    CHECK(MPI_File_read_at(file, 550, data, 100, MPI_BYTE, &status));
    EXPECT(count_of(&status, MPI_BYTE) == 50 && data[0] == 'x' && data[49] == 'x' && data[50] == 0);
    CHECK(MPI_File_sync(file));
    CHECK(MPI_File_set_atomicity(file, 1));
    EXPECT(MPI_File_write_at(file, -1, data, 10, MPI_BYTE, &status) != MPI_SUCCESS);
    CHECK(MPI_File_sync(file));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    const char *path = argv[1];
    MPI_File file;
    CHECK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    CHECK(MPI_File_set_atomicity(file, 1));
    interleaved(file, path, 0);
    interleaved(file, path, 1000);
    /* and out of the atomic mode, and into it again */
    int flag;
    CHECK(MPI_File_set_atomicity(file, 0));
    CHECK(MPI_File_get_atomicity(file, &flag));
    EXPECT(flag == 0);
    interleaved(file, path, 0);
    CHECK(MPI_File_set_atomicity(file, 1));
    CHECK(MPI_File_get_atomicity(file, &flag));
    EXPECT(flag == 1);
    arrays(file);
    constructors(file, path);
    pointers(file);
    ends(file);
    shared(file, path);
    CHECK(MPI_File_close(&file));

    /* what may only be read is not written; a file of one rank alone */
    CHECK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    CHECK(MPI_File_set_atomicity(file, 1));
    int word = -1;
    CHECK(MPI_File_read_at(file, 0, &word, 1, MPI_INT, MPI_STATUS_IGNORE));
    EXPECT(word >= 0 && word < size);
    EXPECT(MPI_File_write_at(file, 0, &word, 1, MPI_INT, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    CHECK(MPI_File_close(&file));
    if (rank == 0) {
        CHECK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, &file));
        CHECK(MPI_File_set_atomicity(file, 1));
        CHECK(MPI_File_write_all(file, &word, 1, MPI_INT, MPI_STATUS_IGNORE));
        CHECK(MPI_File_close(&file));
        puts("all as it should be");
    }
    MPI_Finalize();
    return 0;
}
