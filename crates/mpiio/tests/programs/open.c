/* Opens a file, and closes it.
 *
 *   open FILE HOW
 *
 * HOW is "delete" for a file that is deleted when it is closed, and "new" for one that must not be there yet. Prints "opened" or
 * "refused" on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d, rank %d: not so: %s\n", __LINE__, rank, #condition);         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

int main(int argc, char **argv) {
    int rank, found = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int is_deleted = !strcmp(argv[2], "delete");
    int how = is_deleted ? MPI_MODE_DELETE_ON_CLOSE : MPI_MODE_EXCL;
    MPI_File file;
    int code = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR | how, MPI_INFO_NULL, &file);
    if (code == MPI_SUCCESS) {
        EXPECT(!MPI_File_get_amode(file, &found));
        if (is_deleted) EXPECT(found & how);
        EXPECT(access(argv[1], F_OK) == 0);
        MPI_Barrier(MPI_COMM_WORLD);
        EXPECT(!MPI_File_close(&file));
        MPI_Barrier(MPI_COMM_WORLD);
        EXPECT((access(argv[1], F_OK) == 0) == !is_deleted);
    }
    if (rank == 0) puts(code == MPI_SUCCESS ? "opened" : "refused");
    MPI_Finalize();
    return 0;
}
