/* File types whose bytes some MPI libraries take for others than the standard says: each byte is where it is to be, by independent and
 * collective calls and at the individual pointer, and is read back. And elements in memory that are described by their addresses.
 *
 *   types FILE
 *
 * Prints "done" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d, rank %d: not so: %s\n", __LINE__, rank, #condition);         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

enum { ROOM = 64, LONGEST = 16 };

/* Makes a file type, and tells where its bytes and those of the next copy are. Returns their number. */
static int make(int which, MPI_Datatype *type, int *places) {
    MPI_Datatype inner;
    if (which == 0) {
        int block = 1, displacement = 1;
        MPI_Type_indexed(1, &block, &displacement, MPI_INT, &inner);
        MPI_Type_create_resized(inner, -1, 26, type);
        for (int byte = 0; byte < 8; byte++) places[byte] = 4 + byte + byte / 4 * 22;
    } else {
        int sizes[2] = {4, 2}, subsizes[2] = {4, 1}, starts[2] = {0, 1};
        MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_FORTRAN, MPI_CHAR, &inner);
        if (which == 1) {
            int blocks[3] = {2, 0, 0}, displacements[3] = {0, 6, 1};
            MPI_Type_indexed(3, blocks, displacements, inner, type);
        } else MPI_Type_contiguous(2, inner, type);
        for (int byte = 0; byte < 16; byte++) places[byte] = 4 + byte + byte / 4 * 4;
    }
    MPI_Type_free(&inner);
    MPI_Type_commit(type);
    return which == 0 ? 8 : 16;
}

/* Elements at MPI_BOTTOM, whose type has their addresses: written and read by independent, collective and non-blocking calls. */
static void at_the_bottom(MPI_File file, int rank) {
    static char from[8] = "ab.cd.ef", back[8];
    for (int way = 0; way < 3; way++) {
        MPI_Aint addresses[3];
        int blocks[3] = {2, 2, 2};
        MPI_Datatype source, target;
        MPI_Status status;
        MPI_Request request;
        memset(back, '-', sizeof back);
        for (int part = 0; part < 3; part++) MPI_Get_address(from + 3 * part, addresses + part);
        MPI_Type_create_hindexed(3, blocks, addresses, MPI_CHAR, &source);
        for (int part = 0; part < 3; part++) MPI_Get_address(back + 3 * part, addresses + part);
        MPI_Type_create_hindexed(3, blocks, addresses, MPI_CHAR, &target);
        MPI_Type_commit(&source);
        MPI_Type_commit(&target);
        EXPECT(!MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        MPI_Offset at = 6 * rank;
        switch (way) {
        case 0:
            EXPECT(!MPI_File_write_at(file, at, MPI_BOTTOM, 1, source, &status));
            EXPECT(!MPI_File_read_at(file, at, MPI_BOTTOM, 1, target, &status));
            break;
        case 1:
            EXPECT(!MPI_File_write_at_all(file, at, MPI_BOTTOM, 1, source, &status));
            EXPECT(!MPI_File_read_at_all(file, at, MPI_BOTTOM, 1, target, &status));
            break;
        default:
            EXPECT(!MPI_File_iwrite_at(file, at, MPI_BOTTOM, 1, source, &request));
            EXPECT(!MPI_Wait(&request, &status));
            EXPECT(!MPI_File_iread_at(file, at, MPI_BOTTOM, 1, target, &request));
            EXPECT(!MPI_Wait(&request, &status));
        }
        EXPECT(!memcmp(back, "ab-cd-ef", sizeof back));
        MPI_Type_free(&source);
        MPI_Type_free(&target);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    static const char data[LONGEST + 1] = "abcdefghijklmnop";
    int rank, places[LONGEST];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_File file;
    EXPECT(!MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    EXPECT(!MPI_File_set_atomicity(file, 1));
    for (int which = 0; which < 3; which++) {
        MPI_Datatype type;
        int bytes = make(which, &type, places);
        for (int way = 0; way < 3; way++) {
            char expected[ROOM] = {0}, found[ROOM] = {0}, back[LONGEST] = {0};
            MPI_Offset at = -1;
            MPI_Status status;
            int count = -1;
            EXPECT(!MPI_File_set_size(file, 0));
            EXPECT(!MPI_File_set_size(file, ROOM));
            EXPECT(!MPI_File_set_view(file, 0, MPI_BYTE, type, "native", MPI_INFO_NULL));
            int mine = rank == 0 ? bytes : 0;
            switch (way) {
            case 0: EXPECT(!MPI_File_write_at(file, 0, data, mine, MPI_BYTE, &status)); break;
            case 1: EXPECT(!MPI_File_write_at_all(file, 0, data, mine, MPI_BYTE, &status)); break;
            default: /* in two parts */
                EXPECT(!MPI_File_write(file, data, mine - mine / 3, MPI_BYTE, &status));
                EXPECT(!MPI_File_write_all(file, data + mine - mine / 3, mine / 3, MPI_BYTE, &status));
                EXPECT(!MPI_File_get_position(file, &at));
                EXPECT(at == mine);
                EXPECT(!MPI_File_seek(file, -mine, MPI_SEEK_CUR));
                EXPECT(!MPI_File_read(file, back, mine, MPI_BYTE, &status));
                EXPECT(!memcmp(back, data, mine));
            }
            MPI_Barrier(MPI_COMM_WORLD);
            EXPECT(!MPI_File_read_at_all(file, 0, back, bytes, MPI_BYTE, &status));
            MPI_Get_count(&status, MPI_BYTE, &count);
            EXPECT(count == bytes);
            EXPECT(!memcmp(back, data, bytes));
            for (int byte = 0; byte < bytes; byte++) expected[places[byte]] = data[byte];
            FILE *plain = fopen(argv[1], "rb");
            EXPECT(fread(found, 1, ROOM, plain) == ROOM);
            fclose(plain);
            EXPECT(!memcmp(found, expected, ROOM));
            MPI_Barrier(MPI_COMM_WORLD);
        }
        MPI_Type_free(&type);
    }
    at_the_bottom(file, rank);
    EXPECT(!MPI_File_close(&file));
    if (rank == 0) puts("done");
    MPI_Finalize();
    return 0;
}
