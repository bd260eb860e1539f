/* The last rank gives wrong arguments to a collective call: it gets an error, and the others do what they were asked for. Seeks to places before
 * the file are errors too.
 *
 *   wrong FILE
 *
 * Prints "done" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d, rank %d: not so: %s\n", __LINE__, rank, #condition);         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

static int handled;

static void handle(MPI_File *file, int *code, ...) {
    MPI_Offset place;
    /* It may ask for the pointer, whatever the call was about. */
    handled += *code != MPI_SUCCESS && MPI_File_get_position(*file, &place) == MPI_SUCCESS;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    int is_wrong = rank == size - 1;
    MPI_File file;
    MPI_Errhandler handler;
    MPI_Datatype uncommitted;
    MPI_Type_vector(2, 1, 2, MPI_INT, &uncommitted);
    MPI_File_create_errhandler(handle, &handler);
    EXPECT(!MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    MPI_File_set_errhandler(file, handler);
    EXPECT(!MPI_File_set_atomicity(file, 1));
    /* Not every MPI library takes the last kind for an error where one process is alone and does the access itself. */
    for (int kind = 0; kind < (size > 1 ? 8 : 7); kind++) {
        int record[2] = {kind, rank}, found[2] = {-1, -1}, code;
        MPI_Offset place = 8 * rank;
        int count = is_wrong && kind == 0 ? -1 : 2;
        MPI_Datatype type = MPI_INT;
        if (is_wrong && kind == 1) type = MPI_DATATYPE_NULL;
        if (is_wrong && kind == 2) type = uncommitted, count = 1;
        if (is_wrong && kind == 3) place = -1;
        handled = 0;
        if (kind < 4) code = MPI_File_write_at_all(file, place, record, count, type, MPI_STATUS_IGNORE);
        else {
            /* At the shared pointer the others cannot go on alone. */
            if (kind == 7)
                EXPECT(!MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
            EXPECT(!MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
            type = MPI_BYTE, count = 8;
            if (is_wrong && kind == 4) count = -1;
            if (is_wrong && kind == 5) type = MPI_DATATYPE_NULL;
            if (is_wrong && kind == 6) type = uncommitted, count = 1;
            if (is_wrong && kind == 7) count = 5;
            code = MPI_File_write_ordered(file, record, count, type, MPI_STATUS_IGNORE);
        }
        if (is_wrong) {
            EXPECT(code != MPI_SUCCESS);
            /* Open MPI does not call the handler for all of its own errors. */
        } else {
            EXPECT(code == MPI_SUCCESS);
            EXPECT(handled == 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (!is_wrong && kind < 4) {
            EXPECT(!MPI_File_read_at(file, 8 * rank, found, 2, MPI_INT, MPI_STATUS_IGNORE));
            EXPECT(found[0] == kind && found[1] == rank);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Offset place = -1;
    EXPECT(!MPI_File_seek(file, 3, MPI_SEEK_SET));
    EXPECT(MPI_File_seek(file, -1, MPI_SEEK_SET) != MPI_SUCCESS);
    EXPECT(MPI_File_seek(file, -4, MPI_SEEK_CUR) != MPI_SUCCESS);
    EXPECT(!MPI_File_seek(file, 2, MPI_SEEK_CUR));
    EXPECT(!MPI_File_get_position(file, &place));
    EXPECT(place == 5);
    EXPECT(!MPI_File_close(&file));
    MPI_Type_free(&uncommitted);
    MPI_Errhandler_free(&handler);
    if (rank == 0) puts("done");
    MPI_Finalize();
    return 0;
}
